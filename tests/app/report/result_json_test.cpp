// Results of one run as JSON.

#include <cmath>
#include <limits>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "app/fake_runs.h"
#include "app/shared/report.h"

namespace dkfac::app {
namespace {

using nlohmann::json;
using testing::failed_run;
using testing::fake_run;

TEST(ToJson, HoldsTheWholeResult) {
  RunResult run = fake_run({0.5, 0.875}, std::numeric_limits<std::uint64_t>::max());
  run.name = "k\"fac\n";
  run.target.accuracy = 0.875;
  run.epochs_to_target = 2;
  EXPECT_TRUE(json::parse(to_json(run))["dollars"].is_null()) << "no price";
  EXPECT_TRUE(json::parse(to_json(run))["chance_accuracy"].is_null()) << "of an older version";
  run.chance = 0.125;
  run.price_per_hour = 36;
  run.total_seconds = 200;
  run.activity_seconds = {{"forward", 0.25}};
  run.configuration = "[run]\n";
  const json j = json::parse(to_json(run));
  EXPECT_EQ(j["status"], "ok");
  EXPECT_EQ(j["name"], "k\"fac\n");
  EXPECT_EQ(j["seed"].get<std::uint64_t>(), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(j["final_accuracy"].get<double>(), 0.875);
  EXPECT_EQ(j["target_accuracy"].get<double>(), 0.875);
  EXPECT_EQ(j["chance_accuracy"].get<double>(), 0.125);
  EXPECT_EQ(j["epochs_to_target"].get<double>(), 2);
  EXPECT_TRUE(j["seconds_to_target"].is_null());
  EXPECT_DOUBLE_EQ(j["dollars"].get<double>(), 2);  // 36 dollars / 3600 s * 200 s.
  EXPECT_TRUE(j["dollars_to_target"].is_null());
  run.seconds_to_target = 100;
  EXPECT_DOUBLE_EQ(json::parse(to_json(run))["dollars_to_target"].get<double>(), 1);
  EXPECT_EQ(j["activity_seconds"]["forward"].get<double>(), 0.25);
  EXPECT_EQ(j["configuration"], "[run]\n");
  ASSERT_EQ(j["epochs"].size(), 2U);
  EXPECT_EQ(j["epochs"][1]["epoch"], 2);
  EXPECT_EQ(j["epochs"][1]["test_accuracy"].get<double>(), 0.875);
  EXPECT_EQ(j["epochs"][1]["train_seconds"].get<double>(), 4.0);
}

TEST(ToJson, KeepsEveryBitOfANumber) {
  RunResult run = fake_run({0.1 + 0.2});
  run.train_seconds = 1.0 / 3.0;
  const json j = json::parse(to_json(run));
  EXPECT_EQ(j["epochs"][0]["test_accuracy"].get<double>(), 0.1 + 0.2);
  EXPECT_EQ(j["train_seconds"].get<double>(), 1.0 / 3.0);
}

TEST(ToJson, WritesNullForWhatIsNotFinite) {
  RunResult run = fake_run({0.5});
  run.epochs[0].train_loss = NAN;
  run.epochs[0].test_loss = INFINITY;
  run.target.accuracy = NAN;
  run.activity_seconds = {{"inverse", -INFINITY}};
  const json j = json::parse(to_json(run));
  EXPECT_TRUE(j["epochs"][0]["train_loss"].is_null());
  EXPECT_TRUE(j["epochs"][0]["test_loss"].is_null());
  EXPECT_TRUE(j["target_accuracy"].is_null());
  EXPECT_TRUE(j["activity_seconds"]["inverse"].is_null());
}

TEST(ToJson, SurvivesTextThatIsNotUtf8) {
  const RunResult run = failed_run("cannot open \xff\xfe");
  EXPECT_EQ(json::parse(to_json(run))["status"], "failed");
}

TEST(ToJson, HasAnEmptyResultToo) {
  const json j = json::parse(to_json(RunResult{}));
  EXPECT_EQ(j["status"], "running");
  EXPECT_TRUE(j["epochs"].is_array() && j["epochs"].empty());
  for (const char* accuracy : {"final_accuracy", "best_accuracy", "median_accuracy"})
    EXPECT_TRUE(j[accuracy].is_null()) << accuracy << ", before the first evaluation";
  for (const char* rate : {"images_per_second", "seconds_per_step"})
    EXPECT_TRUE(j[rate].is_null()) << rate << ", before the end of an epoch";
  EXPECT_TRUE(j["activity_seconds"].is_object());
}

}  // namespace
}  // namespace dkfac::app
