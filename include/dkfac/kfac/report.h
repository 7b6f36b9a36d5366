#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dkfac/core/export.h"
#include "dkfac/core/report.h"

namespace dkfac::kfac {

/// The stage of the robust inversion that produced an inverse (docs/math.md, "Robust inversion").
enum class InverseStage : std::uint8_t {
  damped,       ///< With the requested damping.
  more_damped,  ///< With ten times the damping.
  f64,          ///< In double precision.
  clipped,      ///< From eigenvectors, with negative eigenvalues set to 0.
  kept          ///< All stages failed; the last good inverse is kept.
};
inline constexpr std::size_t kInverseStages = 5;

enum class StatisticKind : std::uint8_t { a, g, norm };

/// Refresh state of one statistic; equal on every rank.
struct DKFAC_API StatisticReport {
  int layer = 0;
  StatisticKind kind = StatisticKind::a;
  bool refreshed = false;     ///< In this step.
  std::int64_t interval = 1;  ///< Steps from its last refresh to the next one.
  std::int64_t age = 0;       ///< Steps since its last refresh.
  /// |X - X'|_F / |X'|_F of the last two refreshes; negative while unknown, and with fixed
  /// intervals, which do not compute it.
  double drift = -1;
};

/// What one step() did, curvature included. Fields are of `step` unless they name another one.
/// Where agreement.may_update() is true and `updated` false, no layer has an inverse.
struct DKFAC_API StepReport : UpdateReport {
  /// Names of the layers whose curvature has never been inverted, so that their gradients are not
  /// preconditioned. In the order they were added, equal on every rank. Empty for a rejected step.
  std::vector<std::string> without_inverse;
  bool statistics_refreshed = false;  ///< At least one was refreshed.
  /// At least one was rebuilt. Equal on all ranks, except in the first step after a CUDA run has
  /// loaded a state saved by a CPU run. Inverses in a form that the device cannot apply are then
  /// rebuilt, and only the ranks that hold them report it.
  bool inverses_refreshed = false;
  /// Statistics of all layers in this step; owned by the optimizer, valid until its next step.
  std::span<const StatisticReport> statistics;
  /// Number of inverses that this rank rebuilt in inverses_step, by the stage that succeeded.
  std::array<int, kInverseStages> inverses{};
  /// The step in which `inverses` were rebuilt; 0: none. On a CUDA device it is the previous step,
  /// whose outcome the host reads together with this step's agreement. It is this step with
  /// grad_worker_fraction above 1/P, with EKFAC, or while a layer has no inverse. Where several
  /// steps are pending, e.g. after loading a state, it is the last of them.
  std::int64_t inverses_step = 0;
  /// Refreshes of this rank's factors that failed. Those of an inverse, inverses[kept] of
  /// inverses_step, keep the old inverse; those of a statistic of this step whose sum was not
  /// finite keep the old average.
  int failed_factors = 0;
  std::int64_t underflow = 0;  ///< Operand elements of this rank that rounded to zero.
  /// The step that `saturated` and `kl_factor` refer to: this one on the CPU, the previous one on a
  /// CUDA device, for whose update the host does not wait. 0: none yet; both have initial values.
  std::int64_t update_step = 0;
  /// Weights out of the range of CommunicationOptions::weight_wire in update_step, among the layers
  /// that this rank preconditions.
  std::int64_t saturated = 0;
  double kl_factor = 1;  ///< Factor of the KL clip in update_step.
  /// With StepLength::quadratic: the rate of the preconditioned gradients, and the change of the
  /// loss that the model expects of its minimum. `momentum` is the rate of the last step. All are 0
  /// in a step in which the model has no minimum, which moves no parameter.
  double model_rate = 0, model_change = 0;
  LaunchCounts preconditioning;  ///< Of all steps so far; zero on the host and without graphs.
  /// Those in force from the next step on; 1 with Staleness::adaptive.
  int statistics_interval = 0, inverse_interval = 0;
  bool intervals_chosen = false;  ///< By RefreshOptions::overhead, after this step.
  /// What K-FAC adds with them to a step on average, as a fraction of the step without it: of
  /// processor time on the host, of time on a device. Rank 0's where they were chosen, then that of
  /// this rank. 0 until 5 steps of each kind have been measured.
  double overhead = 0;
  /// The part of it that every step has, whatever the intervals: applying the inverses, and
  /// Preconditioner::count_own().
  double fixed_overhead = 0;
  double damping = 0;  ///< lambda; 0 with a relative damping, and for first-order methods.
  /// Spent on computing and inverting statistics, over all ranks; of local statistics, by this one.
  double flops = 0;
  /// Bytes for collectives, and flops, that refreshing every statistic would have added to this
  /// step. The saved fraction of the work is flops_skipped / (flops + flops_skipped).
  std::uint64_t bytes_skipped = 0;
  double flops_skipped = 0;
  [[nodiscard]] std::string brief() const;
};

}  // namespace dkfac::kfac
