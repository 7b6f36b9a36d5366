#include "app/report/details.h"

#include <algorithm>

namespace dkfac::app {

std::map<std::string, double> step_seconds(const RunGroup& group) {
  constexpr const char* kNotTraining = "evaluation";
  std::map<std::string, double> out;
  double runs = 0;
  for (const RunResult& run : group.runs) {
    if (run.steps <= 0 || run.activity_seconds.empty()) continue;
    ++runs;
    for (const auto& [activity, seconds] : run.activity_seconds)
      if (activity != kNotTraining && seconds > 0)
        out[activity] += seconds / static_cast<double>(run.steps);
  }
  for (auto& [activity, seconds] : out) seconds /= runs;
  return out;
}

std::optional<LoadingMetrics> loading_of(const RunGroup& group) {
  LoadingMetrics sum;
  double epochs = 0;
  for (const RunResult& run : group.runs) {
    double bad = 0;
    for (const EpochMetrics& epoch : run.epochs) {
      if (!epoch.loading) continue;
      ++epochs;
      for (double LoadingMetrics::*part :
           {&LoadingMetrics::wait_fraction, &LoadingMetrics::images, &LoadingMetrics::read_s,
            &LoadingMetrics::decode_s, &LoadingMetrics::resize_s, &LoadingMetrics::normalise_s})
        sum.*part += (*epoch.loading).*part;
      bad = std::max(bad, epoch.loading->bad);
    }
    sum.bad += bad;
  }
  if (epochs == 0) return std::nullopt;
  sum.wait_fraction /= epochs;
  return sum;
}

std::optional<StalenessSummary> staleness_of(const RunGroup& group) {
  std::vector<const RunResult*> adaptive;
  for (const RunResult& run : group.runs)
    if (!run.curvature.intervals.empty()) adaptive.push_back(&run);
  if (adaptive.empty()) return std::nullopt;
  const auto spread = [&](double (CurvatureResult::*value)() const) {
    std::vector<double> values;
    for (const RunResult* run : adaptive) values.push_back((run->curvature.*value)());
    return spread_of(values);
  };
  return StalenessSummary{spread(&CurvatureResult::a_kept), spread(&CurvatureResult::g_kept),
                          spread(&CurvatureResult::bytes_saved),
                          spread(&CurvatureResult::flops_saved), adaptive.front()};
}

}  // namespace dkfac::app
