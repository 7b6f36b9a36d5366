#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor.h"

#include "comm/collective/host_device_pair.h"
#include "comm/collective/worker_grid.h"
#include "kfac/inverse/layer_curvature.h"

/// What owners have rebuilt, for the other workers of their column.
namespace dkfac::kfac {

/// One inverse, or an average that is inverted where it is used.
struct SharedPart {
  int owner = 0;
  Factor* factor = nullptr;            ///< With its inverse, or null:
  Tensor* average = nullptr;           ///< This is shared instead.
  std::int64_t* statistics = nullptr;  ///< A count that travels with either, or null.
};

/// Elements of a part on the wire: what is known of it, and triangles of inverses and Cholesky
/// factors, or whole eigenvectors (with eigenvalues) and rows.
[[nodiscard]] std::int64_t shared_numel(const SharedPart& part);

/// One all_gather_v within the column per step that has rebuilt something; afterwards all workers
/// of a layer hold the same bits. Nothing with one worker per layer. The host waits for a device,
/// as it has to know whether what it is given is good.
class InverseSharing {
 public:
  /// `all`: every part of this rank's column that may ever be shared; fixes the buffer.
  InverseSharing(Context& ctx, const comm::WorkerGrid& grid, DType dtype,
                 std::span<const SharedPart> all);
  /// The parts of this step, equal on all ranks of the column.
  void run(std::span<const SharedPart> parts);
  [[nodiscard]] std::size_t bytes() const { return buffer_.bytes(); }

 private:
  std::int64_t layout(std::span<const SharedPart> parts);
  /// body(part, its elements, place and number of its head in `heads_`) for the parts that this
  /// rank owns, resp. those that it does not.
  template <class Body>
  void for_parts(std::span<const SharedPart> parts, bool own, Body&& body);

  Context& ctx_;
  comm::WorkerGrid grid_;
  Tensor buffer_;
  comm::HostDevicePair heads_;  ///< f64: numbers that the host keeps, of all parts of a step.
  std::vector<std::int64_t> counts_, next_;  ///< Per rank of the column.
};

}  // namespace dkfac::kfac
