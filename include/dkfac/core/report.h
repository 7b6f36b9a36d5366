#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "dkfac/core/export.h"
#include "dkfac/core/step_flags.h"

namespace dkfac {

/// Arguments of one step().
struct DKFAC_API StepArgs {
  /// Learning rate of this step, finite and >= 0. Required: an Optimizer rejects the default NaN. A
  /// Preconditioner uses it only for the KL clip.
  double lr = std::numeric_limits<double>::quiet_NaN();
  StepFlags flags = {};
  /// Overrides momentum (m0 for MomentumRule::paper), or beta1 of AdamW, in this step. In [0, 1),
  /// equal on all ranks. Unset: the option's value. Unused by a Preconditioner, which has none.
  std::optional<double> momentum = std::nullopt;
};

/// Host time of one step on this rank, in seconds by activity. Zero for activities that did not
/// run.
struct DKFAC_API StepSeconds {
  double statistics = 0;  ///< A, G, BatchNorm Fisher, inside record_*; 0 in a replayed pass.
  double exchange = 0;    ///< Waiting for reductions and gathers, packing included.
  double inverse = 0;
  double update = 0;  ///< Averaging, preconditioning, momentum, rescaling.

  double statistics_a = 0;  ///< Part of `statistics`: A.
  double statistics_g = 0;  ///< Part of `statistics`: G; the remainder is BatchNorm's.
  double average = 0;       ///< Part of `update`: updating the running averages of statistics.
  double precondition = 0;  ///< Part of `update`: applying inverses to gradients.
  double gather = 0;        ///< Part of `exchange`: gathering weights or directions (K-FAC).
};

/// How work that is equal in many steps was launched on a device so far: call by call, or captured
/// as a CUDA graph, which is one launch.
struct DKFAC_API LaunchCounts {
  std::int64_t eager = 0, captured = 0, replayed = 0;
  std::int64_t refused = 0;  ///< Captures that failed; the work ran call by call then.
  std::string reason;        ///< Of the last of them.
};

/// Report of one step() of any optimizer.
struct DKFAC_API UpdateReport {
  std::int64_t step = 0;  ///< Counted from 1.
  /// Whether the update was applied, on every rank alike. If not, gradients and parameters are
  /// unchanged; if the ranks rejected the step (not agreement.may_update()), all other state is
  /// too.
  bool updated = false;
  StepAgreement agreement;
  double momentum = 0;      ///< As applied, after correction.
  std::uint64_t bytes = 0;  ///< Passed to collectives by this rank in this step.
  /// Number of times that scratch memory grew so far; constant once steps are steady.
  std::int64_t scratch_growths = 0;
  StepSeconds seconds;
};

}  // namespace dkfac
