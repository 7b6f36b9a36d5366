#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor.h"

#include "comm/collective/host_device_pair.h"
#include "comm/collective/worker_grid.h"
#include "kfac/curvature/shared_part.h"

/// Sends rebuilt inverses from owners to the other workers of their column.
namespace dkfac::kfac {

/// Shares inverses by one all_gather_v within the column per step that has rebuilt any; afterwards
/// all workers of a layer hold bitwise identical inverses. No-op with one worker per layer. The
/// host synchronizes with the device, because it needs to know whether received inverses are valid.
class InverseSharing {
 public:
  /// `all`: every part of this rank's column that may ever be shared; determines the size of the
  /// buffer.
  InverseSharing(Context& ctx, const comm::WorkerGrid& grid, DType dtype,
                 std::span<const SharedPart> all);
  /// Shares the parts of this step, which must be equal on all ranks of the column.
  void run(std::span<const SharedPart> parts);
  [[nodiscard]] std::size_t bytes() const { return buffer_.bytes(); }

 private:
  std::int64_t layout(std::span<const SharedPart> parts);
  /// Calls body(part, its elements, offset and size of its head in `heads_`) for the parts that
  /// this rank owns (own = true) or does not own.
  template <class Body>
  void for_parts(std::span<const SharedPart> parts, bool own, Body&& body);

  Context& ctx_;
  comm::WorkerGrid grid_;
  Tensor buffer_;
  comm::HostDevicePair heads_;               ///< f64: heads of all parts of a step.
  std::vector<std::int64_t> counts_, next_;  ///< Per rank of the column.
};

}  // namespace dkfac::kfac
