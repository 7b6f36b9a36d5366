#pragma once

#include <cstdint>
#include <string>

namespace dkfac::kfac {

/// What one rank brings to a step's vote beside what the library finds itself.
struct Vote {
  bool loss_nonfinite = false;
  bool data_error = false;
  bool stop = false;  ///< A signal asked this rank to stop after the step.
};

/// Outcome of the vote: how many ranks raised each flag; the same on every rank.
struct VoteResult {
  int nonfinite_loss = 0;
  int nonfinite_gradient = 0;
  int nonfinite_statistic = 0;
  int data_error = 0;
  int numeric_failure = 0;  ///< Owners past max_failed_refreshes at the previous step.
  int stop = 0;
  [[nodiscard]] bool may_update() const {
    return nonfinite_loss + nonfinite_gradient + nonfinite_statistic + data_error == 0;
  }
};

/// Seconds of host time of one step, by phase (this rank). Zero where nothing was done.
struct PhaseSeconds {
  double statistics = 0;  ///< A, G, BatchNorm Fisher, inside record_*.
  double exchange = 0;    ///< Waiting for reductions and gathers, packing included.
  double inverse = 0;
  double update = 0;  ///< Averaging, preconditioning, momentum, rescaling.
};

/// What one step() did.
struct StepReport {
  std::int64_t step = 0;  ///< From 1.
  bool updated = false;   ///< False: the vote failed, nothing was touched on any rank.
  VoteResult vote;
  bool statistics_refreshed = false;
  bool inverses_refreshed = false;
  int failed_factors = 0;      ///< Refreshes of this rank's factors that kept the old inverse.
  std::int64_t underflow = 0;  ///< Operand elements of this rank that rounded to zero.
  double damping = 0;
  double momentum = 0;      ///< As applied, after correction.
  std::uint64_t bytes = 0;  ///< Handed to collectives by this rank in this step.
  /// How often temporary memory has grown so far; constant once steps are steady.
  std::int64_t scratch_growths = 0;
  PhaseSeconds seconds;
  [[nodiscard]] std::string brief() const;
};

}  // namespace dkfac::kfac
