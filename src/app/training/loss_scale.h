#pragma once

#include <cstdint>

#include "dkfac/kfac/report.h"

#include "app/shared/config.h"

namespace dkfac::app {

/// Options of the loss scale, which keeps 16-bit gradients from underflowing. It is equal on every
/// rank, because it depends only on the agreement on each step. Dynamic scaling follows
/// Micikevicius et al. 2018, section 3.2, with NVIDIA's constants: starts at 2^16, doubles after
/// 2000 consecutive good steps, halves on overflow.
struct LossScaleOptions {
  LossScaling mode = LossScaling::none;
  double initial = 65536;
  std::int64_t growth_interval = 2000;
  double floor = 1, ceiling = 16777216;  ///< 2^24
};

/// State of the loss scale, saved in checkpoints.
struct LossScale {
  double value = 1;
  std::int64_t good_steps = 0;  ///< Since the last change.
};

[[nodiscard]] LossScaleOptions loss_scale_options(const Config& config);
[[nodiscard]] LossScale first_loss_scale(const LossScaleOptions& options);

/// Returns whether a step was rejected because gradients overflowed, which a smaller scale may fix:
/// the loss is finite, but a gradient or statistic is not.
[[nodiscard]] bool overflowed(const StepAgreement& agreement);

/// Updates the scale after a step. Returns true when it was lowered: the rejected step is then part
/// of the search for the scale, and no sign of divergence.
bool advance(LossScale& scale, const LossScaleOptions& options, const kfac::StepReport& report);

}  // namespace dkfac::app
