#include "kfac/schedule/budget.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "dkfac/core/error.h"

namespace dkfac::kfac {
namespace {

constexpr int kIntervals[] = {1, 2, 5, 10, 20, 50, 100};
/// Statistics for each rebuild. Rebuilds that cost nothing follow every statistic; those that cost
/// much do not keep the statistics from being fresh.
constexpr int kRatios[] = {1, 5, 10};
/// Until the choice; and the least where no intervals keep within the budget, as longer ones gain
/// little beside what applying costs.
constexpr int kFirstStatistics = 10, kFirstInverses = 50;
constexpr int kLeastStatistics = 20, kLeastInverses = 100;

/// interval * ratio, or the largest interval that there is.
int longer(int interval, int ratio) {
  constexpr int kMost = std::numeric_limits<int>::max();
  return interval > kMost / ratio ? kMost : interval * ratio;
}

double refreshing(const StepCosts& costs, const IntervalChoice& choice) {
  return costs.statistics / choice.statistics + costs.inverses / choice.inverses;
}

/// The intervals that there are, in the order of preference.
std::vector<IntervalChoice> candidates(const IntervalBudget& budget) {
  const int statistics = budget.given.statistics_interval, inverses = budget.given.inverse_interval;
  std::vector<IntervalChoice> all;
  const auto add = [&](int s, int i) {
    if (budget.apart ? i > s : i >= s) all.push_back({.statistics = s, .inverses = i});
  };
  if (statistics > 0)
    for (const int ratio : kIntervals) add(statistics, longer(statistics, ratio));
  else if (inverses > 0)
    for (const int s : kIntervals) add(s, inverses);
  else
    for (const int s : kIntervals)
      for (const int ratio : kRatios) add(s, s * ratio);
  return all;
}

bool is_least(const IntervalBudget& budget, const IntervalChoice& choice) {
  return (budget.given.statistics_interval > 0 || choice.statistics >= kLeastStatistics) &&
         (budget.given.inverse_interval > 0 || choice.inverses >= kLeastInverses);
}

}  // namespace

double share_of(const StepCosts& costs, int statistics_interval, int inverse_interval) {
  const IntervalChoice intervals{.statistics = statistics_interval, .inverses = inverse_interval};
  return (costs.apply + refreshing(costs, intervals)) / std::max(costs.passes, 1e-9);
}

double fixed_share(const StepCosts& costs) { return costs.apply / std::max(costs.passes, 1e-9); }

bool IntervalBudget::is_free() const {
  return given.staleness == Staleness::fixed &&
         (given.statistics_interval == 0 || given.inverse_interval == 0);
}

IntervalBudget make_budget(const CurvatureOptions& options) {
  IntervalBudget budget;
  budget.given = options.refresh;
  budget.apart = options.inverse.method == InverseMethod::ekfac;
  budget.wanted = budget.is_free();
  return budget;
}

void put_in_force(const IntervalBudget& budget, RefreshOptions& refresh) {
  int statistics = budget.given.statistics_interval, inverses = budget.given.inverse_interval;
  if (budget.given.staleness == Staleness::adaptive) {
    statistics = inverses = 1;
  } else if (budget.choice.step > 0) {
    statistics = statistics > 0 ? statistics : budget.choice.statistics;
    inverses = inverses > 0 ? inverses : budget.choice.inverses;
  } else {
    if (statistics == 0)
      statistics = inverses > 0 ? std::clamp(inverses / 2, 1, kFirstStatistics) : kFirstStatistics;
    if (inverses == 0) inverses = std::max(kFirstInverses, longer(statistics, 5));
  }
  refresh.statistics_interval = statistics;
  refresh.inverse_interval = inverses;
}

int rebuild_interval(const RefreshOptions& refresh) {
  RefreshOptions planned;
  IntervalBudget budget;
  budget.given = refresh;
  put_in_force(budget, planned);
  return std::max(planned.statistics_interval, planned.inverse_interval);
}

IntervalChoice choose_intervals(const StepCosts& costs, const IntervalBudget& budget) {
  const std::vector<IntervalChoice> all = candidates(budget);
  const auto fits = [&](const IntervalChoice& c) {
    return share_of(costs, c.statistics, c.inverses) <= budget.given.overhead;
  };
  const auto enough = [&](const IntervalChoice& c) {
    return is_least(budget, c) && refreshing(costs, c) <= costs.apply;
  };
  auto found = std::ranges::find_if(all, fits);
  if (found == all.end()) found = std::ranges::find_if(all, enough);
  IntervalChoice choice = found == all.end() ? all.back() : *found;
  choice.share = share_of(costs, choice.statistics, choice.inverses);
  choice.fixed = fixed_share(costs);
  return choice;
}

std::optional<IntervalChoice> next_choice(const IntervalBudget& budget, StepMeter& meter,
                                          const RefreshOptions& in_force, bool inverses) {
  if (!is_measured(meter, in_force.statistics_interval, inverses) ||
      (!budget.wanted && meter.steps - meter.forgotten < kStepsOfComparison))
    return std::nullopt;
  const StepCosts costs = costs_of(meter);
  const IntervalChoice choice = choose_intervals(costs, budget);
  if (budget.wanted) return choice;
  const double now = share_of(costs, in_force.statistics_interval, in_force.inverse_interval);
  const double then = budget.choice.share;
  const bool same = choice.statistics == in_force.statistics_interval &&
                    choice.inverses == in_force.inverse_interval;
  if (!same && (now > 2 * then || 2 * now < then)) return choice;
  restart(meter);
  return std::nullopt;
}

void visit_choice(StateVisitor& visitor, IntervalBudget& budget) {
  IntervalChoice& choice = budget.choice;
  const std::int64_t before = choice.step;
  visitor.integer("intervals_chosen_at", StateKind::replicated, choice.step);
  visitor.number("chosen_statistics_interval", StateKind::replicated, choice.statistics);
  visitor.number("chosen_inverse_interval", StateKind::replicated, choice.inverses);
  visitor.real("chosen_overhead", StateKind::replicated, choice.share);
  if (choice.step > 0 && (choice.statistics < 1 || choice.inverses < 1))
    throw DataError(detail::concat("[state] the intervals ", choice.statistics, " and ",
                                   choice.inverses, " were chosen; they must be >= 1"));
  if (!budget.is_free()) choice = {};  // That of a run with a budget.
  if (choice.step == before) return;
  budget.replayed = choice.step > 0;
  budget.wanted = budget.is_free() && !budget.replayed;
}

}  // namespace dkfac::kfac
