#pragma once

#include <cstdint>

#include "dkfac/kfac/report.h"

#include "app/shared/config.h"

namespace dkfac::app {

/// The factor on the loss gradient that keeps 16-bit gradients from underflowing; the same on every
/// rank, since it follows from votes alone. Dynamic as Micikevicius et al. 2018, section 3.2, with
/// NVIDIA's constants: starts at 2^16, doubles after 2000 good steps in a row, halves on overflow.
struct LossScaleOptions {
  LossScaling mode = LossScaling::none;
  double initial = 65536;
  std::int64_t growth_interval = 2000;
  double floor = 1, ceiling = 16777216;  ///< 2^24
};

/// What has to be kept for going on later.
struct LossScale {
  double value = 1;
  std::int64_t good_steps = 0;  ///< Since the last change.
};

[[nodiscard]] LossScaleOptions loss_scale_options(const Config& config);
[[nodiscard]] LossScale first_loss_scale(const LossScaleOptions& options);

/// Whether a step failed for gradients too large for their type, which a smaller scale may mend: a
/// finite loss, but a gradient or statistic that is not.
[[nodiscard]] bool overflowed(const StepAgreement& agreement);

/// Goes on to the next step. True when the scale was lowered, so that the lost step is part of the
/// search for it and no sign of divergence.
bool advance(LossScale& scale, const LossScaleOptions& options, const kfac::StepReport& report);

}  // namespace dkfac::app
