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

std::optional<LoadingSummary> loading_of(const RunGroup& group) {
  LoadingMetrics sum;
  double epochs = 0, all_bad = 0;
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
    all_bad += bad;
  }
  if (epochs == 0) return std::nullopt;
  return LoadingSummary{.wait_fraction = sum.wait_fraction / epochs,
                        .all = sum.rate(sum.read_s + sum.decode_s + sum.resize_s + sum.normalise_s),
                        .read = sum.rate(sum.read_s),
                        .decode = sum.rate(sum.decode_s),
                        .resize = sum.rate(sum.resize_s),
                        .normalise = sum.rate(sum.normalise_s),
                        .bad = all_bad};
}

std::optional<StalenessSummary> staleness_of(const RunGroup& group) {
  StalenessSummary out;
  std::vector<double> a, g, bytes, flops;
  for (const RunResult& run : group.runs) {
    const CurvatureResult& c = run.curvature;
    if (c.intervals.empty()) continue;
    if (out.first == nullptr) out.first = &run;
    a.push_back(c.a_kept());
    g.push_back(c.g_kept());
    bytes.push_back(c.bytes_saved());
    flops.push_back(c.flops_saved());
  }
  if (out.first == nullptr) return std::nullopt;
  out.a_kept = spread_of(a);
  out.g_kept = spread_of(g);
  out.bytes_saved = spread_of(bytes);
  out.flops_saved = spread_of(flops);
  return out;
}

}  // namespace dkfac::app
