#include "app/report/ranking.h"

#include <algorithm>
#include <cmath>

#include "app/logging/run_summary.h"

namespace dkfac::app {
namespace {

bool is_of_the_end(Respect respect) {
  return is_accuracy(respect) || respect == Respect::final_loss || respect == Respect::best_loss;
}

/// Fraction of a group's runs that qualify.
double fraction_of(Respect respect, const GroupSummary& group) {
  if (respect == Respect::step || group.runs == 0) return 1;
  const std::int64_t part = is_of_the_end(respect) ? group.runs - group.failed : group.reached;
  return static_cast<double>(part) / static_cast<double>(group.runs);
}

double value_at_target(Respect respect, const RunResult& run, const Targets& target) {
  const bool epochs = respect == Respect::epochs;
  if (!target.any()) return NAN;
  for (const EpochMetrics& epoch : run.epochs)
    if (target.reached(epoch))
      return epochs ? static_cast<double>(epoch.epoch) : epoch.train_seconds;
  // A run without epochs keeps its stored values.
  if (!run.epochs.empty()) return NAN;
  return (epochs ? run.epochs_to_target : run.seconds_to_target).value_or(NAN);
}

/// Whether the 95 % interval of the difference to the leader lies on the worse side of 0.
bool shown_worse(Respect respect, const Spread& difference, double leader) {
  constexpr double kRounding = 1e-9;  // Differences of equal values may be as large, relatively.
  if (!difference.half_width) return false;
  const double worse = is_accuracy(respect) ? -difference.mean : difference.mean;
  return worse > *difference.half_width + kRounding * std::abs(leader);
}

}  // namespace

double value_in(Respect respect, const RunResult& run, const Targets& target) {
  if (run.status == "failed") return NAN;
  if (respect == Respect::step) return run.seconds_per_step > 0 ? run.seconds_per_step : NAN;
  if (!is_of_the_end(respect)) return value_at_target(respect, run, target);
  if (!any_evaluated(run)) return NAN;
  if (is_accuracy(respect))
    return respect == Respect::final_accuracy ? run.final_accuracy : run.best_accuracy;
  return respect == Respect::final_loss ? run.final_loss : run.best_loss;
}

Spread paired_difference(Respect respect, const RunGroup& group, const RunGroup& other,
                         const Targets& target) {
  std::vector<double> differences;  // Those of a run without a value are NaN, and left out.
  for (const RunResult& run : group.runs) {
    const auto same = std::ranges::find_if(other.runs, [&](const RunResult& r) {
      return r.seed == run.seed && std::isfinite(value_in(respect, r, target));
    });
    if (same != other.runs.end())
      differences.push_back(value_in(respect, run, target) - value_in(respect, *same, target));
  }
  return spread_of(differences);
}

Standing standing_of(Respect respect, std::span<const RunGroup> groups,
                     const std::vector<GroupSummary>& summaries, const Targets& target) {
  Standing out{respect, {}};
  for (std::size_t i = 0; i < summaries.size(); ++i)
    if (summaries[i].values[respect].count > 0) out.places.push_back({i});
  const auto mean = [&](const Place& place) { return summaries[place.group].values[respect].mean; };
  std::ranges::stable_sort(out.places, [&](const Place& a, const Place& b) {
    const double of_a = fraction_of(respect, summaries[a.group]),
                 of_b = fraction_of(respect, summaries[b.group]);
    if (of_a != of_b) return of_a > of_b;
    return is_accuracy(respect) ? mean(a) > mean(b) : mean(a) < mean(b);
  });
  for (std::size_t i = 1; i < out.places.size(); ++i) {
    Place& place = out.places[i];
    const Place& leader = out.places.front();
    place.difference =
        paired_difference(respect, groups[place.group], groups[leader.group], target);
    place.worse = shown_worse(respect, place.difference, mean(leader));
  }
  return out;
}

}  // namespace dkfac::app
