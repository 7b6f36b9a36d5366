#pragma once

#include <cstdint>
#include <optional>

#include "dkfac/core/state.h"
#include "dkfac/kfac/options.h"

#include "kfac/schedule/step_meter.h"

/// Intervals that keep what K-FAC adds to a step within RefreshOptions::overhead (docs/math.md,
/// "Intervals from a budget"). Plain state and functions of it.
namespace dkfac::kfac {

/// Steps after which a choice is compared with what K-FAC costs then.
inline constexpr std::int64_t kStepsOfComparison = 100;

/// What K-FAC adds to a step on average, as a fraction of the passes.
[[nodiscard]] double share_of(const StepCosts& costs, int statistics_interval,
                              int inverse_interval);
/// The part of it that no interval changes.
[[nodiscard]] double fixed_share(const StepCosts& costs);

struct IntervalChoice {
  std::int64_t step = 0;  ///< The last one before it is in force; 0: there is no choice.
  int statistics = 0, inverses = 0;
  double share = 0;  ///< share_of()
  double fixed = 0;  ///< fixed_share()
};

/// Intervals of the options as the user gave them, and what was chosen for those that are 0.
struct IntervalBudget {
  RefreshOptions given;
  /// Inverses are rebuilt less often than statistics are refreshed: EKFAC.
  bool apart = false;
  bool wanted = false;    ///< A choice is to be made.
  bool replayed = false;  ///< The choice is that of a loaded state: nothing is measured.
  IntervalChoice choice;  ///< The last one.
  [[nodiscard]] bool is_free() const;  ///< Whether any interval is chosen.
};

[[nodiscard]] IntervalBudget make_budget(const CurvatureOptions& options);
/// Sets the intervals that are chosen: by the choice, or as they are before the first one.
void put_in_force(const IntervalBudget& budget, RefreshOptions& refresh);

/// Steps between two rebuilds of an inverse for which its form is chosen: those of put_in_force()
/// before a choice; without a new statistic there is no rebuild.
[[nodiscard]] int rebuild_interval(const RefreshOptions& refresh);

/// The smallest statistics interval with which K-FAC keeps within the budget, and with it the
/// smallest inverse interval; where none does, 20 and 100, or longer ones as long as refreshing
/// costs more than applying. `step` is not set.
[[nodiscard]] IntervalChoice choose_intervals(const StepCosts& costs, const IntervalBudget& budget);

/// The choice that this meter suggests now, if any: the first one that is wanted, and then another
/// one where the share has changed twofold. in_force: put_in_force(). inverses: whether there are
/// any. What it has compared the meter forgets.
[[nodiscard]] std::optional<IntervalChoice> next_choice(const IntervalBudget& budget,
                                                        StepMeter& meter,
                                                        const RefreshOptions& in_force,
                                                        bool inverses);

/// Visits the choice. Loading another one replays it.
void visit_choice(StateVisitor& visitor, IntervalBudget& budget);

}  // namespace dkfac::kfac
