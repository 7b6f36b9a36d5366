#include "app/report/details.h"

#include <algorithm>
#include <cmath>

namespace dkfac::app {
namespace {

struct Samples {
  std::vector<double> values, steps, seconds;
};

struct Drawn {
  const char* name;
  bool tested;  ///< Only evaluated epochs have it.
  double (*value)(const EpochMetrics&);
};
/// In the order of Measure.
constexpr Drawn kDrawn[] = {
    {"test_accuracy", true, [](const EpochMetrics& e) { return e.test_accuracy; }},
    {"train_loss", false, [](const EpochMetrics& e) { return e.train_loss; }},
    {"test_loss", true, [](const EpochMetrics& e) { return e.test_loss; }},
    {"test_top5", true, [](const EpochMetrics& e) { return e.test_top5.value_or(NAN); }},
    {"train_top5", false, [](const EpochMetrics& e) { return e.train_top5.value_or(NAN); }}};

const Drawn& drawn(Measure measure) { return kDrawn[static_cast<std::size_t>(measure)]; }

/// Collects the values of all seeds for each epoch that any of them has.
std::map<std::int64_t, Samples> by_epoch(const RunGroup& group, Measure measure) {
  std::map<std::int64_t, Samples> out;
  for (const RunResult& run : group.runs)
    for (const EpochMetrics& epoch : run.epochs) {
      if (drawn(measure).tested && !epoch.evaluated) continue;
      Samples& samples = out[epoch.epoch];
      const double value = drawn(measure).value(epoch);
      if (!std::isfinite(value)) continue;
      samples.values.push_back(value);
      samples.steps.push_back(static_cast<double>(epoch.step));
      samples.seconds.push_back(epoch.train_seconds);
    }
  return out;
}

}  // namespace

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

std::vector<NamedRun> runs_of(std::span<const RunGroup> groups) {
  std::vector<NamedRun> out;
  for (const RunGroup& group : groups)
    for (const RunResult& run : group.runs) out.push_back({group.name, &run});
  return out;
}

const char* name_of(Measure measure) { return drawn(measure).name; }

std::vector<Segment> curve_of(const RunGroup& group, Measure measure) {
  std::vector<Segment> out;
  bool open = false;
  for (const auto& [epoch, samples] : by_epoch(group, measure)) {
    const Spread value = spread_of(samples.values);
    const Spread seconds = spread_of(samples.seconds);
    if (value.count == 0 || seconds.count == 0) {
      open = false;
      continue;
    }
    if (!open) out.emplace_back();
    open = true;
    out.back().push_back({epoch, spread_of(samples.steps).mean, seconds.mean, value.mean, value.min,
                          value.max, value.count});
  }
  return out;
}

}  // namespace dkfac::app
