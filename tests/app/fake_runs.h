#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "app/shared/report.h"

namespace dkfac::app::testing {

/// A run whose test accuracies are given; loss 1/epoch, two seconds and ten steps an epoch.
inline RunResult fake_run(const std::vector<double>& accuracies, std::uint64_t seed = 1,
                          double seconds_per_epoch = 2.0) {
  RunResult run;
  run.status = "ok";
  run.seed = seed;
  run.model = "mlp";
  run.data = "numbers";
  run.version = "1.2.3";
  run.global_batch = 64;
  for (const double accuracy : accuracies) {
    EpochMetrics metrics;
    metrics.epoch = std::ssize(run.epochs) + 1;
    metrics.step = 10 * metrics.epoch;
    metrics.train_loss = 1.0 / static_cast<double>(metrics.epoch);
    metrics.test_accuracy = accuracy;
    metrics.train_seconds = seconds_per_epoch * static_cast<double>(metrics.epoch);
    run.final_accuracy = accuracy;
    run.best_accuracy = accuracy > run.best_accuracy ? accuracy : run.best_accuracy;
    run.steps = metrics.step;
    run.train_seconds = metrics.train_seconds;
    run.epochs.push_back(metrics);
  }
  run.seconds_per_step = seconds_per_epoch / 10;
  return run;
}

inline RunResult failed_run(const std::string& error, std::uint64_t seed = 1) {
  RunResult run = fake_run({0.1, 0.95}, seed);
  run.status = "failed";
  run.error = error;
  return run;
}

/// One run for each row of accuracies, seeds 1, 2, ...
inline RunGroup fake_group(const std::string& name, const std::vector<std::vector<double>>& rows,
                           double seconds_per_epoch = 2.0) {
  RunGroup group{name, {}};
  for (const auto& row : rows) {
    group.runs.push_back(fake_run(row, group.runs.size() + 1, seconds_per_epoch));
    group.runs.back().name = name;
  }
  return group;
}

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

using Names = std::vector<std::string>;

/// The names of the groups that are shown to be best.
inline Names best_in(const Comparison& comparison, Respect respect) {
  Names names;
  for (const Standing& standing : comparison.standings)
    if (standing.respect == respect)
      for (const std::size_t group : standing.best())
        names.push_back(comparison.groups[group].name);
  return names;
}

}  // namespace dkfac::app::testing
