#include "app/report/series.h"

#include <cmath>
#include <map>

#include "app/shared/report.h"

namespace dkfac::app {
namespace {

struct Samples {
  std::vector<double> values, steps, seconds;
};

bool needs_test(Measure measure) {
  return measure == Measure::test_accuracy || measure == Measure::test_loss ||
         measure == Measure::test_top5;
}

double value_of(const EpochMetrics& metrics, Measure measure) {
  switch (measure) {
    case Measure::train_loss:
      return metrics.train_loss;
    case Measure::test_loss:
      return metrics.test_loss;
    case Measure::test_top5:
      return metrics.test_top5.value_or(NAN);
    case Measure::train_top5:
      return metrics.train_top5.value_or(NAN);
    case Measure::test_accuracy:
      break;
  }
  return metrics.test_accuracy;
}

/// Collects the values of all seeds for each epoch that any of them has.
std::map<std::int64_t, Samples> by_epoch(const RunGroup& group, Measure measure) {
  std::map<std::int64_t, Samples> out;
  for (const RunResult& run : group.runs)
    for (const EpochMetrics& epoch : run.epochs) {
      if (needs_test(measure) && !epoch.evaluated) continue;
      Samples& samples = out[epoch.epoch];
      const double value = value_of(epoch, measure);
      if (!std::isfinite(value)) continue;
      samples.values.push_back(value);
      samples.steps.push_back(static_cast<double>(epoch.step));
      samples.seconds.push_back(epoch.train_seconds);
    }
  return out;
}

}  // namespace

std::vector<NamedRun> runs_of(std::span<const RunGroup> groups) {
  std::vector<NamedRun> out;
  for (const RunGroup& group : groups)
    for (const RunResult& run : group.runs) out.push_back({group.name, &run});
  return out;
}

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
