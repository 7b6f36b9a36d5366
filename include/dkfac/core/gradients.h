#pragma once

#include <cstdint>
#include <optional>

#include "dkfac/core/export.h"
#include "dkfac/core/types.h"

namespace dkfac {

/// How the loss whose gradients come in was reduced; decides how the per-sample gradient is
/// recovered, so that damping means the same at every batch size.
enum class LossReduction : std::uint8_t {
  /// Mean over this rank's samples of the step, of all its micro-batches together, which are
  /// equally large; ranks are averaged.
  local_mean,
  global_mean,  ///< This rank's samples divided by the global batch; ranks are summed.
  sum           ///< Sum over this rank's samples.
};

/// How a recorded gradient relates to the loss of one sample.
struct DKFAC_API RecordScale {
  double loss_scale = 1;  ///< Factor of mixed precision that is still in the gradient.
  /// Samples of the step over all ranks; 0: samples of the record, which has some then, times ranks
  /// and micro-batches.
  std::int64_t global_batch = 0;
};

/// How gradients, statistics and parameters travel between ranks.
struct DKFAC_API CommunicationOptions {
  bool overlap = true;  ///< They leave while forward and backward still run.
  /// A reduction starts once about this many bytes are waiting for it. > 0.
  std::int64_t bucket_bytes = std::int64_t{4} << 20;
  /// Types in which they travel: f32, bf16 or f16; sums are taken in f32, in rank order, at the
  /// owner. Unset: the type in which they are computed. First-order methods have gradients alone,
  /// Preconditioner statistics alone, K-FAC as an optimizer all three.
  std::optional<DType> gradient_wire = std::nullopt, statistics_wire = std::nullopt;
  /// Of updated weights as they are gathered: the workers of a layer keep masters in the
  /// parameters' type, and every rank, workers included and whatever their number, goes on with the
  /// rounded ones. Where a master is past its range they stay at its largest number, which
  /// StepReport::saturated counts.
  std::optional<DType> weight_wire = std::nullopt;
};

}  // namespace dkfac
