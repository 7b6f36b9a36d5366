#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "dkfac/core/export.h"
#include "dkfac/core/step_flags.h"

namespace dkfac {

struct DKFAC_API StepArgs {
  /// Learning rate of this step, finite and >= 0: to be set, as an Optimizer refuses the default. A
  /// Preconditioner reads it for the KL clip alone.
  double lr = std::numeric_limits<double>::quiet_NaN();
  StepFlags flags = {};
  /// In the place of the option's, in [0, 1), equal on all ranks; for MomentumRule::paper in that
  /// of m0. Unset: the option's. Nothing for a Preconditioner, which has none.
  std::optional<double> momentum = std::nullopt;
};

/// Seconds of host time of one step, by phase (this rank). Zero where nothing was done.
struct DKFAC_API PhaseSeconds {
  double statistics = 0;  ///< A, G, BatchNorm Fisher, inside record_*.
  double exchange = 0;    ///< Waiting for reductions and gathers, packing included.
  double inverse = 0;
  double update = 0;  ///< Averaging, preconditioning, momentum, rescaling.

  double statistics_a = 0;  ///< Of `statistics`: A.
  double statistics_g = 0;  ///< Of `statistics`: G; the rest is BatchNorm's.
  double average = 0;       ///< Of `update`: merging statistics into their averages.
  double precondition = 0;  ///< Of `update`: applying inverses to gradients.
  double gather = 0;        ///< Of `exchange`: updated weights or directions to all ranks; K-FAC's.
};

/// What one step() of any optimizer did.
struct DKFAC_API UpdateReport {
  std::int64_t step = 0;  ///< From 1.
  /// False: gradients and parameters are as they were, on every rank, and unless the vote has
  /// passed (StepAgreement::may_update()) nothing else was touched.
  bool updated = false;
  StepAgreement agreement;
  double momentum = 0;      ///< As applied, after correction.
  std::uint64_t bytes = 0;  ///< Handed to collectives by this rank in this step.
  /// How often temporary memory has grown so far; constant once steps are steady.
  std::int64_t scratch_growths = 0;
  PhaseSeconds seconds;
};

}  // namespace dkfac
