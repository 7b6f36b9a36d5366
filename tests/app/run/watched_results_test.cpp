#include "app/run/watched_results.h"

#include <cmath>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "app/logging/run_summary.h"

namespace dkfac::app {
namespace {

/// A run of three epochs of ten steps and two seconds, whose second epoch was evaluated.
RunResult partly_evaluated() {
  RunResult result;
  result.target = {.accuracy = 0.5, .top5 = 0.8};
  for (std::int64_t epoch = 1; epoch <= 3; ++epoch) {
    EpochMetrics metrics;
    metrics.epoch = epoch;
    metrics.step = 10 * epoch;
    metrics.train_seconds = 2.0 * static_cast<double>(epoch);
    metrics.images_per_second = 1;
    metrics.evaluated = epoch == 2;
    metrics.test_accuracy = epoch == 2 ? 0.6 : NAN;
    if (epoch == 2) metrics.test_top5 = 0.7;
    add_epoch(result, metrics);
  }
  return result;
}

std::filesystem::path file_with(const std::string& lines) {
  const std::filesystem::path path = std::filesystem::path(::testing::TempDir()) / "watched.jsonl";
  std::ofstream(path) << lines;
  return path;
}

TEST(WatchedResults, CompletesEpochsByTheirStep) {
  RunResult result = partly_evaluated();
  EXPECT_FALSE(result.epochs_to_target) << "top-5 is too low in the only evaluated epoch";
  const WatchedEpochs counts =
      add_evaluations(result, file_with(R"({"step":30,"loss":1.5,"accuracy":0.55,"top5":0.9})"
                                        "\nno line\n"
                                        R"({"step":20,"loss":1,"accuracy":0.1,"top5":0.1})"
                                        "\n"));
  EXPECT_EQ(counts.added, 1);
  EXPECT_EQ(counts.missing, 1);
  EXPECT_FALSE(result.epochs[0].evaluated);
  EXPECT_EQ(result.epochs[1].test_accuracy, 0.6) << "what the run itself found stays";
  EXPECT_EQ(result.epochs[2].test_loss, 1.5);
  EXPECT_EQ(result.final_accuracy, 0.55);
  EXPECT_EQ(result.best_accuracy, 0.6);
  EXPECT_EQ(result.epochs_to_target, 3.0);
  EXPECT_EQ(result.seconds_to_target, 6.0);
}

TEST(WatchedResults, GivesWhatARunThatEvaluatesGives) {
  RunResult whole, left;
  whole.target = left.target = {.accuracy = 0.4};
  std::string lines;
  for (std::int64_t epoch = 1; epoch <= 7; ++epoch) {
    EpochMetrics metrics;
    metrics.epoch = epoch;
    metrics.step = 10 * epoch;
    metrics.train_seconds = 0.5 * static_cast<double>(epoch);
    metrics.images_per_second = 1;
    EpochMetrics without = metrics;
    metrics.test_accuracy = 0.125 * static_cast<double>((epoch * 5) % 7);
    metrics.test_loss = 1 / static_cast<double>(epoch);
    without.evaluated = false;
    without.test_accuracy = without.test_loss = NAN;
    add_epoch(whole, metrics);
    add_epoch(left, without);
    lines += "{\"step\":" + std::to_string(metrics.step) +
             ",\"loss\":" + std::to_string(metrics.test_loss) +
             ",\"accuracy\":" + std::to_string(metrics.test_accuracy) + "}\n";
  }
  EXPECT_FALSE(any_evaluated(left));
  EXPECT_EQ(add_evaluations(left, file_with(lines)).missing, 0);
  EXPECT_EQ(left.final_accuracy, whole.final_accuracy);
  EXPECT_EQ(left.best_accuracy, whole.best_accuracy);
  EXPECT_EQ(left.median_accuracy, whole.median_accuracy);
  EXPECT_EQ(left.epochs_to_target, whole.epochs_to_target);
  EXPECT_EQ(left.seconds_to_target, whole.seconds_to_target);
}

TEST(WatchedResults, TargetsAreReachedTogether) {
  EpochMetrics epoch;
  epoch.test_accuracy = 0.76;
  epoch.test_top5 = 0.93;
  EXPECT_TRUE((Targets{.accuracy = 0.75}).reached(epoch));
  EXPECT_TRUE((Targets{.top5 = 0.93}).reached(epoch));
  EXPECT_TRUE((Targets{.accuracy = 0.75, .top5 = 0.93}).reached(epoch));
  EXPECT_FALSE((Targets{.accuracy = 0.77, .top5 = 0.93}).reached(epoch));
  EXPECT_FALSE((Targets{.accuracy = 0.75, .top5 = 0.94}).reached(epoch));
  EXPECT_FALSE(Targets{}.reached(epoch));
  epoch.test_top5.reset();
  EXPECT_FALSE((Targets{.top5 = 0.1}).reached(epoch)) << "top-5 is unknown";
}

}  // namespace
}  // namespace dkfac::app
