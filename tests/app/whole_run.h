#pragma once

#include "app/shared/phases.h"

/// Schedules of a configuration whose sections hold for the whole run.
namespace dkfac::app {

inline Phase whole_run(const Config& config) {
  return {.epochs = config.run.epochs, .config = config};
}
inline double learning_rate(const Config& config, double epoch) {
  return learning_rate(whole_run(config), epoch);
}
inline kfac::CurvatureSettings curvature_settings(const Config& config, double epoch,
                                                  std::int64_t steps) {
  kfac::CurvatureSettings settings = curvature_settings(whole_run(config), epoch, steps, steps);
  settings.micro_batches.reset();
  return settings;
}

}  // namespace dkfac::app
