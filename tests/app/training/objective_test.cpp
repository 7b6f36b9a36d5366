// Losses of reconstruction, and statistics from targets drawn for a part of the samples.

#include "app/training/objective.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "app/logging/progress.h"
#include "app/shared/report.h"
#include "app/tiny_run.h"
#include "app/training/evaluate.h"

namespace dkfac::app {
namespace {

using Keys = std::vector<std::string>;

/// Losses of 12 steps differ by rounding alone below this; see passes_test.cpp.
constexpr double kSameSums = 1e6 * std::numeric_limits<double>::epsilon();

Config reconstruction(Keys keys) {
  for (const char* key : {"model.name=autoencoder", "model.widths=20-5", "run.precision=f64",
                          "optimizer.fisher=monte_carlo"})
    keys.emplace_back(key);
  return tiny::config("kfac", keys);
}

double train_loss_of(const Keys& keys, int ranks = 1) {
  return tiny::run(reconstruction(keys), ranks, {}).result.epochs.at(1).train_loss;
}

TEST(Reconstruction, TrainsTheSameAtEveryRankCount) {
  for (const std::string loss : {"sigmoid", "squared"}) {
    const Keys keys{"train.reconstruction=" + loss};
    const double one = train_loss_of(keys);
    EXPECT_LT(one, tiny::run(reconstruction(keys), 1, {}).losses.at(1));
    for (const int ranks : {2, 4})
      EXPECT_NEAR(train_loss_of(keys, ranks), one, kSameSums * one) << loss;
    const Keys other{keys[0], "run.seed=2"};
    EXPECT_GT(std::abs(train_loss_of(other) - one), 1e-3) << "negative control";
  }
}

// A quarter of each of four parts are the same samples, whether ranks or micro-batches have them;
// 32 samples in 4 parts, 2 of each.
TEST(DrawnPart, IsOfTheSameSamplesAndWeightsInRanksAndMicroBatches) {
  const Keys part{"optimizer.statistics_fraction=0.25"};
  Keys two = part, four = part;
  two.emplace_back("train.micro_batches=2");
  four.emplace_back("train.micro_batches=4");
  const double cut = train_loss_of(four);
  EXPECT_NEAR(train_loss_of(two, 2), cut, kSameSums * cut);
  EXPECT_NEAR(train_loss_of(part, 4), cut, kSameSums * cut);
  EXPECT_GT(std::abs(train_loss_of({"train.micro_batches=4"}) - cut), 1e-6) << "negative control";
}

TEST(DrawnPart, IsNotTakenThroughBatchNorm) {
  const Keys keys{"optimizer.fisher=monte_carlo", "optimizer.statistics_fraction=0.25"};
  EXPECT_FALSE(draws_from_part(tiny::config("kfac", keys)));
  EXPECT_EQ(optimizer_options(tiny::config("kfac", keys)).kfac.curvature.statistics.fraction, 0.25);
  const Config config = reconstruction({keys[1]});
  EXPECT_TRUE(draws_from_part(config));
  EXPECT_EQ(optimizer_options(config).kfac.curvature.statistics.fraction, 1);
  EXPECT_EQ(drawn_part(config, 33), 9) << "rounded up, as of records";
  EXPECT_EQ(drawn_part(config, 3), 1) << "at least one";
  EXPECT_EQ(drawn_part(config, 0), 0);
}

TEST(Reconstruction, TalliesTheDivergenceAndNoAccuracy) {
  Tally tally;
  const double sums[] = {250, 240};
  tally.add(TrainLoss::sigmoid, sums, 2);
  EXPECT_EQ(tally.mean_loss(), 5);
  EXPECT_TRUE(std::isnan(tally.accuracy()));
  EXPECT_FALSE(top5_accuracy(tally, 1000));
  Tally labelled;
  labelled.add(TrainLoss::softmax, sums, 500);
  EXPECT_EQ(labelled.mean_loss(), 0.5);
  EXPECT_EQ(labelled.accuracy(), 0.48);
}

TEST(Reconstruction, ReachesATargetOfItsLossAndTellsNoAccuracy) {
  const double first = tiny::run(reconstruction({}), 1, {}).result.epochs.at(0).test_loss;
  const RunResult result =
      tiny::run(reconstruction({"run.target_loss=" + std::to_string(first * 0.999)}), 1, {}).result;
  EXPECT_EQ(result.epochs_to_target, 2);
  EXPECT_EQ(result.steps_to_target, 12);
  EXPECT_LT(result.final_loss, first);
  EXPECT_EQ(result.best_loss, result.final_loss);
  EXPECT_FALSE(result.chance);
  for (const std::string& text : {run_text(result), epoch_line("run", result, 2)}) {
    EXPECT_EQ(text.find("acc"), std::string::npos) << text;
    EXPECT_NE(text.find("test loss"), std::string::npos) << text;
  }
  EXPECT_NE(to_json(result).find("\"test_accuracy\": null"), std::string::npos);
  EXPECT_NE(to_json(result).find("\"final_accuracy\": null"), std::string::npos);
}

TEST(Reconstruction, RefusesWhatIsOfLabels) {
  for (const char* key :
       {"run.target=0.9", "run.target_top5=0.9", "train.label_smoothing=0.1", "augment.mixup=0.2",
        "run.tta=flip", "model.widths=20-", "model.widths=0", "model.widths=a"})
    EXPECT_THROW((void)tiny::config("sgd", {"model.name=autoencoder", key}), InvalidArgument)
        << key;
}

}  // namespace
}  // namespace dkfac::app
