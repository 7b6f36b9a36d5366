#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dkfac/kfac/options.h"

#include "app/shared/config.h"

namespace dkfac::app {

/// A phase of a run (fast.ai 2018; Mikami et al. 2018): a range of epochs in which some keys have
/// other values. In a file, after all sections:
///
///   [[phase]]
///   epochs = 13                  # of this phase; run.epochs is the sum and need not be given
///   data.image_size = 128        # any key of phase_keys(), under its full name
///   train.global_batch = 4096
///   lr.knots = [[0, 1.0], [13, 0.25]]
///
/// and on the command line "--set phase.2.data.image_size=96", the first phase being 1. A key that
/// a phase leaves out has the value of the file's sections. If a phase gives a key of a schedule,
/// that schedule counts epochs and steps from the start of the phase, and lr.end = 0 means the
/// phase's end. Schedules of the sections count from the start of the run. The schedules are
/// independent: the learning rate (lr.*), its warm-up (lr.warmup_*), momentum, damping, intervals.
/// The base values (lr.base_batch, optimizer.momentum, damping and the intervals) are not keys of a
/// schedule.
///
/// Parameters, momentum, factors, inverses, running statistics and averages carry over from one
/// phase to the next. A mixed batch (mixup) does not when the image size changes.
struct Phase {
  std::int64_t first_epoch = 1;  ///< From 1.
  std::int64_t epochs = 0;
  std::vector<std::string> changed = {};  ///< Keys that the phase gives, in table order.
  Config config;                          ///< Effective in these epochs, without phases.
  /// Schedules that the phase itself defines.
  struct Own {
    bool lr = false, warmup = false, momentum = false, damping = false, intervals = false;
  } own = {};
};

/// Returns the phases of a run in order, which cover all epochs; a single one if the file has none.
[[nodiscard]] std::vector<Phase> phases_of(const Config& config);
/// Returns the phase of an epoch (from 1); past the end, the last phase.
[[nodiscard]] const Phase& phase_at(const std::vector<Phase>& phases, std::int64_t epoch);
/// Returns the keys that a phase may give, in table order.
[[nodiscard]] std::vector<std::string> phase_keys();

// --- the schedules, at a fractional epoch of the run ------------------------------------------

/// Returns the learning rate, including warm-up and scaling with the batch.
[[nodiscard]] double learning_rate(const Phase& phase, double epoch);
[[nodiscard]] double momentum(const Phase& phase, double epoch);
/// Returns damping and intervals for the step after `steps` steps, `phase_steps` of them in this
/// phase, with the micro-batches of the phase.
[[nodiscard]] kfac::CurvatureSettings curvature_settings(const Phase& phase, double epoch,
                                                         std::int64_t steps,
                                                         std::int64_t phase_steps);

}  // namespace dkfac::app
