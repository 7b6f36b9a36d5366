#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/export.h"

namespace dkfac::comm {

/// Collectives of another framework over host memory, e.g. of torch.distributed. Each call blocks
/// until its result is complete, and throws when it fails. Every rank makes the same calls in the
/// same order, from whichever thread uses the communicator. Time limits are those of the framework.
class DKFAC_API ExternalCollectives {
 public:
  virtual ~ExternalCollectives() = default;
  ExternalCollectives(const ExternalCollectives&) = delete;
  ExternalCollectives& operator=(const ExternalCollectives&) = delete;

  /// Reduces x, contiguous f64 or f32, in place. Every rank gets the same bits. With ReduceOp::max,
  /// a NaN on any rank gives NaN.
  virtual void all_reduce(TensorView x, ReduceOp op) = 0;
  /// Gathers in of every rank: block r of out, of in.size() bytes, becomes in of rank r. in.size()
  /// is equal on all ranks.
  virtual void all_gather(std::span<const std::byte> in, std::span<std::byte> out) = 0;
  virtual void broadcast(std::span<std::byte> x, int root) = 0;
  virtual void barrier() = 0;

  struct DKFAC_API Group {
    std::shared_ptr<ExternalCollectives> collectives;
    int rank = 0, size = 1;
  };
  /// Makes the group of the ranks of equal color, ranked by (key, rank), with null collectives for
  /// color < 0. The default throws CommError: DistributionOptions::grad_worker_fraction is then 1
  /// or the owner alone.
  virtual Group split(int color, int key);
  /// Makes pending and later calls fail on every rank. The default does nothing.
  virtual void abort(std::string_view reason) noexcept;

 protected:
  ExternalCollectives() = default;
};

/// Makes a communicator of host memory from the collectives of another framework. It derives the
/// collectives that these lack: sums of bf16, f16 and i32 are gathered and summed in its order, a
/// reduce-scatter is an all-reduce, and an all-gather of uneven segments is padded or a sequence of
/// broadcasts. Sums of f64 and f32 have the order of the framework.
///
/// overlaps() is false: its calls block, and must not run while the framework's own are pending in
/// another order. Optimizers then communicate in step() alone. Throws InvalidArgument for a rank
/// outside [0, size) and for null collectives. Options::timeout_s has no effect.
[[nodiscard]] DKFAC_API std::shared_ptr<Communicator> make_external(
    int rank, int size, std::shared_ptr<ExternalCollectives> collectives, Options options = {});

}  // namespace dkfac::comm
