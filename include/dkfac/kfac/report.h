#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dkfac/core/export.h"
#include "dkfac/core/report.h"

namespace dkfac::kfac {

/// How far the ladder of docs/math.md, "Ladder", had to be climbed for an inverse.
enum class InverseStage : std::uint8_t {
  damped,       ///< As asked.
  more_damped,  ///< With ten times the damping.
  f64,          ///< In double precision.
  clipped,      ///< From eigenvectors, with eigenvalues below 0 taken as 0.
  kept          ///< All failed; the last good inverse stays in use.
};
inline constexpr std::size_t kInverseStages = 5;

enum class StatisticKind : std::uint8_t { a, g, batch_norm };

/// The schedule of one statistic; the same on every rank.
struct DKFAC_API StatisticReport {
  int layer = 0;
  StatisticKind kind = StatisticKind::a;
  bool refreshed = false;     ///< In this step.
  std::int64_t interval = 1;  ///< Steps from its last refresh to the next one.
  std::int64_t age = 0;       ///< Steps since its last refresh.
  /// |X - X'|_F / |X'|_F of the last two refreshes; negative while unknown (and with fixed
  /// intervals, which do not ask).
  double drift = -1;
};

/// What one step() did, curvature included: of `step` but for the fields that name another one.
/// Where K-FAC does not update although the vote has passed, no layer has an inverse.
struct DKFAC_API StepReport : UpdateReport {
  /// Layers whose curvature has never been inverted, so that their gradients are not
  /// preconditioned: by name, in the order they were added, the same on every rank. Empty where the
  /// vote failed.
  std::vector<std::string> without_inverse;
  bool statistics_refreshed = false;  ///< At least one.
  /// At least one. The same on all ranks, but in the first step after a device has loaded a state
  /// of hosts: then of inverses in a form that it cannot take, only ranks that hold them say so.
  bool inverses_refreshed = false;
  /// Of this step; owned by the optimizer, valid until its next step.
  std::span<const StatisticReport> statistics;
  /// Inverses of this rank that were rebuilt in inverses_step, by the stage that succeeded.
  std::array<int, kInverseStages> inverses{};
  /// The step that `inverses` are of; 0 where there are none. On a CUDA device the one before this
  /// step, whose outcome the host learns with this step's vote, unless grad_worker_fraction is
  /// above 1/P, they are EKFAC's, or a layer had none yet; of several steps, as where a state was
  /// loaded in between, the last.
  std::int64_t inverses_step = 0;
  /// Refreshes of this rank's factors that kept the old inverse: inverses[kept], which are of
  /// inverses_step, and statistics of this step that were not finite.
  int failed_factors = 0;
  std::int64_t underflow = 0;  ///< Operand elements of this rank that rounded to zero.
  /// The update that `saturated` and `kl_factor` are of: this step's, and on a CUDA device, whose
  /// host does not wait for it, the one before; 0 where there is none, and these are as they begin.
  std::int64_t update_step = 0;
  /// Weights of layers that this rank works on past the range of CommunicationOptions::weight_wire,
  /// in update_step.
  std::int64_t saturated = 0;
  double kl_factor = 1;  ///< What the KL clip multiplied the directions of update_step by.
  double damping = 0;
  double flops = 0;  ///< Spent on building and inverting statistics, world-wide.
  /// What this step would have handed to collectives and spent beyond that, had all statistics
  /// been refreshed: of flops + flops_skipped the share flops_skipped was saved.
  std::uint64_t bytes_skipped = 0;
  double flops_skipped = 0;
  [[nodiscard]] std::string brief() const;
};

}  // namespace dkfac::kfac
