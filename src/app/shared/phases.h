#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dkfac/kfac/options.h"

#include "app/shared/config.h"

namespace dkfac::app {

/// Phases of a run (fast.ai 2018; Mikami et al. 2018): stretches of epochs in which some keys have
/// other values. In a file, behind all sections:
///
///   [[phase]]
///   epochs = 13                  # of this phase; run.epochs is the sum and need not be given
///   data.image_size = 128        # any key of phase_keys(), under its full name
///   train.global_batch = 4096
///   lr.knots = [[0, 1.0], [13, 0.25]]
///
/// and on the command line "--set phase.2.data.image_size=96", the first phase being 1. A key that
/// a phase leaves out has the value of the file's sections. A schedule of which a phase gives a key
/// counts epochs and steps from the start of the phase, and lr.end = 0 is then the phase's end;
/// those of the sections count from the start of the run. The schedules, each by itself: the
/// learning rate (lr.*), its warm-up (lr.warmup_*), momentum, damping, intervals. A number beside a
/// schedule (lr.base_batch, optimizer.momentum, damping and the intervals) is no key of it.
///
/// Parameters, momentum, factors and inverses, running statistics and averages go on from one phase
/// to the next; a mixed batch (mixup) does not, when images change their size.
struct Phase {
  std::int64_t first_epoch = 1;  ///< From 1.
  std::int64_t epochs = 0;
  std::vector<std::string> changed = {};  ///< Keys that it gives, in the order of the table.
  Config config;                          ///< As it is in these epochs, without phases.
  /// Schedules of its own.
  struct Own {
    bool lr = false, warmup = false, momentum = false, damping = false, intervals = false;
  } own = {};
};

/// The phases of a run in order; a single one where the file has none. They cover all epochs.
[[nodiscard]] std::vector<Phase> phases_of(const Config& config);
/// Of an epoch from 1 on; the last one past the end.
[[nodiscard]] const Phase& phase_at(const std::vector<Phase>& phases, std::int64_t epoch);
/// Keys that a phase may give, in the order of the table.
[[nodiscard]] std::vector<std::string> phase_keys();

// --- as in config.h, at a fractional epoch of the run -----------------------------------------

[[nodiscard]] double learning_rate(const Phase& phase, double epoch);
[[nodiscard]] double momentum(const Phase& phase, double epoch);
/// Of the step after `steps` ones, of which `phase_steps` are of the phase; with its micro-batches.
[[nodiscard]] kfac::CurvatureSettings curvature_settings(const Phase& phase, double epoch,
                                                         std::int64_t steps,
                                                         std::int64_t phase_steps);

}  // namespace dkfac::app
