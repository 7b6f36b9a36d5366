#include "app/training/loss_scale.h"

#include <algorithm>

namespace dkfac::app {

LossScaleOptions loss_scale_options(const Config& config) {
  LossScaleOptions options;
  options.mode = config.train.loss_scale;
  options.initial = config.train.initial_loss_scale;
  options.floor = std::min(options.floor, options.initial);
  options.ceiling = std::max(options.ceiling, options.initial);
  return options;
}

LossScale first_loss_scale(const LossScaleOptions& options) {
  return {.value = options.mode == LossScaling::none ? 1 : options.initial};
}

bool overflowed(const StepAgreement& agreement) {
  return agreement.nonfinite_loss == 0 &&
         agreement.nonfinite_gradient + agreement.nonfinite_statistic > 0;
}

bool advance(LossScale& scale, const LossScaleOptions& options, const kfac::StepReport& report) {
  if (options.mode != LossScaling::dynamic) return false;
  if (!report.agreement.may_update()) {
    scale.good_steps = 0;
    if (!overflowed(report.agreement) || scale.value <= options.floor) return false;
    scale.value = std::max(options.floor, scale.value / 2);
    return true;
  }
  if (++scale.good_steps < options.growth_interval) return false;
  scale.value = std::min(options.ceiling, scale.value * 2);
  scale.good_steps = 0;
  return false;
}

}  // namespace dkfac::app
