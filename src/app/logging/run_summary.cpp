#include "app/logging/run_summary.h"

#include <algorithm>
#include <cmath>

namespace dkfac::app {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

double median_of_last(const std::vector<EpochMetrics>& epochs) {
  constexpr std::size_t kEpochs = 5;
  std::vector<double> last;
  for (std::size_t i = epochs.size(); i > 0 && last.size() < kEpochs; --i)
    if (epochs[i - 1].evaluated) last.push_back(epochs[i - 1].test_accuracy);
  if (std::ranges::any_of(last, [](double x) { return std::isnan(x); })) return NAN;
  return median(last);
}

void add_epoch(RunResult& result, const EpochMetrics& metrics) {
  result.epochs.push_back(metrics);
  if (metrics.evaluated) {
    result.final_accuracy = metrics.test_accuracy;
    result.best_accuracy = std::isnan(metrics.test_accuracy)
                               ? NAN
                               : std::max(result.best_accuracy, metrics.test_accuracy);
    result.final_loss = metrics.test_loss;
    result.best_loss = std::fmin(result.best_loss, metrics.test_loss);  // Of a NaN and x, x.
  }
  result.median_accuracy = median_of_last(result.epochs);
  if (result.target.reached(metrics) && !result.epochs_to_target) {
    result.epochs_to_target = static_cast<double>(metrics.epoch);
    result.steps_to_target = static_cast<double>(metrics.step);
    result.seconds_to_target = metrics.train_seconds;
  }
  std::vector<double> rates, steps;
  double before = 0;
  std::int64_t step_before = 0;
  for (const EpochMetrics& epoch : result.epochs) {
    const auto count = static_cast<double>(std::max<std::int64_t>(1, epoch.step - step_before));
    rates.push_back(epoch.images_per_second);
    steps.push_back((epoch.train_seconds - before) / count);
    before = epoch.train_seconds;
    step_before = epoch.step;
  }
  result.images_per_second = median(rates);
  result.seconds_per_step = median(steps);
}

void replace_epochs(RunResult& result, const std::vector<EpochMetrics>& epochs) {
  result.epochs.clear();
  result.final_accuracy = result.best_accuracy = result.median_accuracy = 0;
  result.final_loss = result.best_loss = NAN;
  result.epochs_to_target = result.steps_to_target = result.seconds_to_target = std::nullopt;
  for (const EpochMetrics& epoch : epochs) add_epoch(result, epoch);
}

bool has_accuracy(const RunResult& result) {
  return any_evaluated(result) && !std::isnan(result.final_accuracy);
}

bool any_evaluated(const RunResult& result) {
  return std::ranges::any_of(result.epochs, [](const EpochMetrics& e) { return e.evaluated; });
}

}  // namespace dkfac::app
