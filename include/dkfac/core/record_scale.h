#pragma once

#include <cstdint>

#include "dkfac/core/export.h"

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

}  // namespace dkfac
