// Keys of the curvature: schedules, and which of them go together.

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/kfac/schedule.h"
#include "dkfac/optim/lr_schedule.h"

#include "app/config/keys.h"
#include "app/shared/config.h"
#include "app/tiny_run.h"
#include "app/whole_run.h"

namespace dkfac::app {
namespace {

Config parse_keys(const std::vector<std::string>& overrides) {
  return parse_config("", overrides, "test");
}

std::string refusal_of(const std::vector<std::string>& overrides) {
  try {
    (void)parse_keys(overrides);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

void expect_refused(const std::vector<std::string>& overrides,
                    const std::vector<std::string>& words) {
  const std::string text = refusal_of(overrides);
  for (const std::string& word : words)
    EXPECT_NE(text.find(word), std::string::npos) << "'" << word << "' is not in: " << text;
}

kfac::CurvatureSettings lambda_and_intervals(double damping, int statistics, int inverses) {
  return {.damping = damping, .statistics_interval = statistics, .inverse_interval = inverses};
}

TEST(CurvatureSchedule, IsConstantUnlessAsked) {
  const Config config = parse_keys({"optimizer.damping=0.03", "optimizer.statistics_interval=1",
                                    "optimizer.inverse_interval=7"});
  EXPECT_FALSE(has_curvature_schedule(config));
  for (const std::int64_t step : {0, 1, 1000})
    EXPECT_EQ(curvature_settings(config, 2.5, step), (lambda_and_intervals(0.03, 1, 7)));
}

TEST(CurvatureSchedule, OfDampingFollowsStepsOrEpochs) {
  const Config warm =
      parse_keys({"optimizer.damping_schedule=warmup", "optimizer.damping=0.001",
                  "optimizer.damping_initial=0.1", "optimizer.damping_warmup_steps=40"});
  EXPECT_TRUE(has_curvature_schedule(warm));
  const kfac::DampingWarmup rule{0.1, 0.001, 40};
  for (const std::int64_t step : {0, 1, 17, 39, 40, 400})
    EXPECT_EQ(curvature_settings(warm, 0, step).damping, rule.at(step));
  EXPECT_EQ(curvature_settings(warm, 0, 0).damping, 0.1);
  const Config knots =
      parse_keys({"optimizer.damping=0.001", "optimizer.damping_schedule=piecewise",
                  "optimizer.damping_knots=[[1, 0.5], [3, 0.25]]"});
  EXPECT_TRUE(has_curvature_schedule(knots));
  EXPECT_EQ(curvature_settings(knots, 0, 9).damping, 0.5);
  EXPECT_EQ(curvature_settings(knots, 2, 9).damping, 0.375);
  EXPECT_EQ(curvature_settings(knots, 8, 9).damping, 0.25);
}

TEST(CurvatureSchedule, LeavesLambdaToTheTracesWithoutADamping) {
  const std::vector<std::string> relative{"optimizer.damping=0", "optimizer.relative_damping=0.5"};
  const kfac::CurvatureSettings settings = curvature_settings(parse_keys(relative), 2.5, 100);
  EXPECT_FALSE(settings.damping);
  EXPECT_EQ(settings.relative_damping, 0.5);
  for (const char* schedule : {"warmup", "piecewise"})
    expect_refused(
        {relative[0], relative[1], "optimizer.damping_schedule=" + std::string(schedule)},
        {"optimizer.damping_schedule", schedule, "optimizer.damping = 0",
         "optimizer.relative_damping"});
}

TEST(CurvatureSchedule, OfIntervalsGrowsFromTheFirstOnes) {
  const Config config =
      parse_keys({"optimizer.damping=0.001", "optimizer.interval_schedule=ramp",
                  "optimizer.statistics_interval=10", "optimizer.inverse_interval=50",
                  "optimizer.first_inverse_interval=5", "optimizer.interval_ramp_steps=90"});
  EXPECT_TRUE(has_curvature_schedule(config));
  EXPECT_EQ(curvature_settings(config, 0, 0), (lambda_and_intervals(0.001, 1, 5)));
  // 1 + 9 * 30/90 = 4, 5 + 45 * 30/90 = 20.
  EXPECT_EQ(curvature_settings(config, 0, 30), (lambda_and_intervals(0.001, 4, 20)));
  EXPECT_EQ(curvature_settings(config, 0, 90), (lambda_and_intervals(0.001, 10, 50)));
  EXPECT_EQ(curvature_settings(config, 0, 900), (lambda_and_intervals(0.001, 10, 50)));
}

TEST(CurvatureKeys, ThatDoNotGoTogetherAreRefusedWithAHint) {
  expect_refused({"optimizer.staleness=adaptive", "optimizer.inverse_interval=5"},
                 {"optimizer.inverse_interval", "optimizer.staleness = fixed"});
  expect_refused({"optimizer.similarity=0.2"}, {"optimizer.staleness = adaptive"});
  expect_refused({"optimizer.staleness=adaptive", "optimizer.interval_schedule=ramp"},
                 {"optimizer.staleness = fixed"});
  expect_refused({"optimizer.interval_ramp_steps=9"}, {"optimizer.interval_schedule = ramp"});
  expect_refused({"optimizer.damping_initial=0.2"}, {"optimizer.damping_schedule = warmup"});
  expect_refused({"optimizer.damping=0.01", "optimizer.damping_schedule=piecewise"},
                 {"optimizer.damping_knots"});
  expect_refused({"optimizer.damping=0.01", "optimizer.damping_schedule=piecewise",
                  "optimizer.damping_knots=[[0, 0.0], [1, 0.1]]"},
                 {"optimizer.damping_knots", "positive"});
  for (const char* key : {"optimizer.fisher=monte_carlo", "optimizer.weight_wire=f16",
                          "optimizer.staleness=adaptive", "optimizer.kl_clip=0.01"})
    expect_refused({"optimizer.type=sgd", key}, {"optimizer.type = kfac"});
  EXPECT_EQ(refusal_of({"optimizer.type=sgd", "optimizer.gradient_wire=bf16"}), "accepted");
}

TEST(CurvatureKeys, OfARampWithEkfacKeepTheScalesFromTheFirstStepOn) {
  const auto refusal = [](std::vector<std::string> more) {
    more.insert(more.begin(),
                {"optimizer.inverse_method=ekfac", "optimizer.statistics_interval=2",
                 "optimizer.inverse_interval=20", "optimizer.interval_schedule=ramp"});
    return refusal_of(more);
  };
  const std::string text = refusal({});
  for (const char* part :
       {"optimizer.first_inverse_interval = 1", "optimizer.first_statistics_interval = 1"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_NE(
      refusal({"optimizer.first_statistics_interval=2", "optimizer.first_inverse_interval=2"}),
      "accepted");
  EXPECT_EQ(refusal({"optimizer.first_inverse_interval=2"}), "accepted");
  // Its end is where it begins.
  EXPECT_EQ(refusal({"optimizer.interval_ramp_steps=0"}), "accepted");
  // What is accepted trains.
  const Config config =
      tiny::config("kfac", {"optimizer.inverse_method=ekfac", "optimizer.interval_schedule=ramp",
                            "optimizer.first_inverse_interval=2"});
  EXPECT_EQ(tiny::run(config, 1, {}, 2).losses.size(), 2U);
}

// A key counts when all the choices count that lead to it.
TEST(CurvatureKeys, ApplyThroughAChainOfChoices) {
  const Key& ramp = *find_key("optimizer.interval_ramp_steps");
  Config adaptive = parse_keys({"optimizer.interval_schedule=ramp",
                                "optimizer.statistics_interval=2", "optimizer.inverse_interval=4"});
  EXPECT_TRUE(applies(ramp, adaptive));
  EXPECT_FALSE(applies(ramp, parse_keys({})));
  adaptive.optimizer.options.kfac.curvature.refresh.staleness = kfac::Staleness::adaptive;
  EXPECT_FALSE(applies(ramp, adaptive));
  adaptive.optimizer.options.kfac.curvature.refresh.staleness = kfac::Staleness::fixed;
  adaptive.optimizer.type = optim::OptimizerType::sgd;
  EXPECT_FALSE(applies(ramp, adaptive));
}

TEST(MicroBatches, ShareTheBatchNormGroupsAndTheSamples) {
  data::Dataset data;
  data.count = 64;
  data.height = data.width = 32;
  data.channels = 3;
  data.classes = 10;
  const auto groups = [&](const std::vector<std::string>& keys, int ranks) {
    return model_options(parse_keys(keys), data, ranks).batch_norm_groups;
  };
  const std::string eight = "model.batch_norm_groups=8", four = "train.micro_batches=4";
  EXPECT_EQ(groups({eight}, 1), 8);
  EXPECT_EQ(groups({eight, four}, 1), 2);
  EXPECT_EQ(groups({eight, four}, 2), 1);
  EXPECT_EQ(groups({four}, 2), 1);
  EXPECT_THROW((void)groups({eight, "train.micro_batches=3"}, 1), InvalidArgument);
  const Config config = parse_keys({"train.global_batch=32", "train.micro_batches=16"});
  EXPECT_NO_THROW((void)sampler_options(config, data, 2));
  EXPECT_THROW((void)sampler_options(config, data, 3), InvalidArgument);
}

/// The loss after one update, whose inverses are of the chosen form. A large step, so that their
/// last bits show.
double loss_after_update(const std::vector<std::string>& keys) {
  std::vector<std::string> all{"run.precision=f64", "optimizer.low_rank=false", "lr.lr=10"};
  all.insert(all.end(), keys.begin(), keys.end());
  return tiny::run(tiny::config("kfac", all), 1, {}, 2).losses.at(2);
}

TEST(IntervalRamp, HasTheFormsOfItsLastIntervals) {
  const std::vector<std::string> end{"optimizer.statistics_interval=100",
                                     "optimizer.inverse_interval=100"};
  std::vector<std::string> ramp = end;
  ramp.insert(ramp.end(),
              {"optimizer.interval_schedule=ramp", "optimizer.interval_ramp_steps=1000"});
  const double expected = loss_after_update(end);
  EXPECT_EQ(loss_after_update(ramp), expected);
  // Otherwise Cholesky factors, which round in another way.
  EXPECT_NE(loss_after_update({"optimizer.statistics_interval=1", "optimizer.inverse_interval=1"}),
            expected);
}

}  // namespace
}  // namespace dkfac::app
