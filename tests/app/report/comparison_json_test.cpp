// The comparison as JSON: all that the page needs.

#include <cmath>
#include <fstream>
#include <limits>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "app/fake_runs.h"
#include "app/shared/report.h"

namespace dkfac::app {
namespace {

using nlohmann::json;
using testing::failed_run;
using testing::fake_group;

json json_of(const std::vector<RunGroup>& groups, std::optional<double> target) {
  return json::parse(to_json(groups, summarize(groups, {target}), "A title"));
}

TEST(ComparisonToJson, HoldsTheSummary) {
  const std::vector<RunGroup> groups{fake_group("a", {{0.5, 0.9}, {0.9, 0.9}}),
                                     fake_group("b", {{0.5, 0.6}, {0.5, 0.6}}),
                                     fake_group("c", {{0.9, 0.7}, {0.4, 1.0}})};
  const json j = json::parse(to_json(groups, summarize(groups, {0.9}), "t"));
  EXPECT_EQ(j["target"].get<double>(), 0.9);
  EXPECT_EQ(j["groups"][0]["epochs_to_target"]["mean"].get<double>(), 1.5);
  EXPECT_EQ(j["groups"][0]["epochs_to_target"]["count"], 2);
  EXPECT_TRUE(j["groups"][1]["epochs_to_target"].is_null());
  EXPECT_EQ(j["winners"]["fewest_epochs"], json::array()) << "of a and c, by seed: -1 and +1";
  EXPECT_EQ(j["winners"]["highest_final_accuracy"], json::array({"a", "c"}));
  const json& final = j["standings"]["final_accuracy"];
  EXPECT_EQ(final["difference_shown"], true);
  EXPECT_EQ(j["standings"]["epochs_to_target"]["difference_shown"], false);
  EXPECT_EQ(final["places"][0]["name"], "a");
  EXPECT_TRUE(final["places"][0]["difference_to_first"].is_null());
  EXPECT_EQ(final["places"][2]["name"], "b");
  EXPECT_EQ(final["places"][2]["shown_worse"], true);
  EXPECT_NEAR(final["places"][2]["difference_to_first"]["mean"].get<double>(), -0.3, 1e-12);
  EXPECT_EQ(final["places"][1]["shown_worse"], false);
  EXPECT_TRUE(json::parse(to_json({}, summarize({}, {}), ""))["target"].is_null());
}

/// Three optimizers with everything that a page shows: a failed run, activities, the adaptive rule,
/// photographs, top-5 accuracies, prices, and names that are no plain text.
std::vector<RunGroup> groups_of_the_sample() {
  std::vector<RunGroup> groups{
      fake_group("kfac", {{0.75, 0.875, 0.9}, {0.75, 0.8625, 0.9}}, 4.0),
      fake_group("sgd <&> $x$", {{0.5, 0.625, 0.75, 0.875}, {0.25, 0.625, 0.75, 0.8125}}),
      fake_group("lars", {{0.125, 0.125, 0.125}, {0.125, 0.125, 0.125}})};
  for (RunGroup& group : groups)
    for (RunResult& run : group.runs) {
      run.activity_seconds = {{"forward", 0.25}, {"backward", 0.5}, {"evaluation", 64.0}};
      run.configuration = "[run]\nname = \"" + group.name + "\"\n[optimizer]\ntype = \"" +
                          group.name + "\"\n[train]\nglobal_batch = 64\n";
      run.chance = 0.125;
      run.price_per_hour = 36;
      run.total_seconds = 100;
      run.images_per_second = 512;
      for (EpochMetrics& epoch : run.epochs) epoch.test_top5 = (1 + epoch.test_accuracy) / 2;
    }
  RunResult& adaptive = groups[0].runs[0];
  adaptive.activity_seconds["inverse"] = 1.5;
  CurvatureResult& c = adaptive.curvature;
  c.a_all = c.g_all = 8;
  c.a_renewed = 2;
  c.g_renewed = 4;
  c.bytes = 60;
  c.bytes_skipped = 20;
  c.flops = 15;
  c.flops_skipped = 45;
  c.intervals = {{1, 1, 1, 0}, {2, 1.5, 1, 0}, {4, 40, 2, 0}};
  adaptive.epochs[0].loading = {
      .wait_fraction = 0.5, .images = 300, .decode_s = 2, .resize_s = 1, .bad = 1};
  adaptive.bad_photos = {"x<y.jpg: it ends early"};
  groups[1].runs.push_back(failed_run("[kfac] factor of <conv1>; raise damping", 3));
  return groups;
}

/// The first difference of two values, beyond the last bits of a sum; empty where they are equal.
std::string difference(const json& a, const json& b, const std::string& where) {
  constexpr double kRoundings = 100;  // Of the mean of a few seeds and its interval.
  if (a.is_number() && b.is_number()) {
    const double x = a, y = b, size = std::max(std::abs(x), std::abs(y));
    return std::abs(x - y) <= kRoundings * std::numeric_limits<double>::epsilon() * size ? ""
                                                                                         : where;
  }
  if (!a.is_structured() || a.type() != b.type() || a.size() != b.size())
    return a == b ? "" : where;
  if (a.is_object())
    for (const auto& [key, value] : a.items())
      if (!b.contains(key)) return where + "/" + key;
  for (const auto& [key, value] : a.items()) {
    const json& other = a.is_object() ? b.at(key) : b.at(std::stoul(key));
    if (const std::string found = difference(value, other, where + "/" + key); !found.empty())
      return found;
  }
  return {};
}

TEST(Difference, IsFoundWhereverItIs) {
  const json a = {{"x", {1, 2.0}}, {"y", "z"}};
  EXPECT_EQ(difference(a, a, "a"), "");
  EXPECT_EQ(difference(a, {{"x", {1, 2.0 + 1e-15}}, {"y", "z"}}, "a"), "");
  EXPECT_EQ(difference(a, {{"x", {1, 2.1}}, {"y", "z"}}, "a"), "a/x/1");
  EXPECT_EQ(difference(a, {{"x", {1, 2.0}}, {"y", "w"}}, "a"), "a/y");
  EXPECT_EQ(difference(a, {{"x", {1, 2.0}}, {"w", "z"}}, "a"), "a/y");
  EXPECT_EQ(difference(a, json::parse("no JSON", nullptr, false), "a"), "a");
}

TEST(ComparisonToJson, IsTheSampleThatThePageIsTestedWith) {
  const std::string text = json_of(groups_of_the_sample(), 0.8).dump(1) + "\n";
  std::ifstream in(DKFAC_PAGE_SAMPLE);
  const json sample = json::parse(in, nullptr, false);
  const std::string where = difference(json::parse(text), sample, "comparison");
  if (where.empty()) return;
  const std::string made = ::testing::TempDir() + "comparison.json";
  std::ofstream(made) << text;
  ADD_FAILURE() << DKFAC_PAGE_SAMPLE << " differs at '" << where
                << "'; if the change is meant, copy " << made
                << " there and run tests/python/test_report.py";
}

TEST(ComparisonToJson, HoldsTheCurvesOfEveryGroup) {
  const json j = json_of(groups_of_the_sample(), 0.8);
  for (const json& group : j["groups"]) {
    EXPECT_FALSE(group["curves"]["test_accuracy"].empty()) << group["name"];
    EXPECT_FALSE(group["curves"]["train_loss"].empty()) << group["name"];
    EXPECT_FALSE(group["curves"]["test_top5"].empty()) << group["name"];
    EXPECT_TRUE(group["curves"]["train_top5"].empty()) << "not counted";
  }
  const json& point = j["groups"][1]["curves"]["test_accuracy"][0][0];
  EXPECT_EQ(point["low"], 0.1) << "of the failed run";
  EXPECT_EQ(point["high"], 0.5);
  EXPECT_EQ(point["runs"], 3);
  EXPECT_EQ(point["seconds"], 2);
}

TEST(ComparisonToJson, HoldsEveryRunAndWhereGroupsDiffer) {
  const json j = json_of(groups_of_the_sample(), 0.8);
  ASSERT_EQ(j["runs"].size(), 7U);
  EXPECT_EQ(j["runs"][4]["status"], "failed");
  EXPECT_EQ(j["runs"][4]["error"], "[kfac] factor of <conv1>; raise damping");
  EXPECT_EQ(j["runs"][0]["dollars"], 1);
  EXPECT_EQ(j["runs"][0]["final_top5"], 0.95);
  EXPECT_EQ(j["settings"]["optimizer.type"],
            json::array({"\"kfac\"", "\"sgd <&> $x$\"", "\"lars\""}));
  EXPECT_FALSE(j["settings"].contains("train.global_batch")) << "the same in all";
  EXPECT_TRUE(j["groups"][1]["staleness"].is_null());
  EXPECT_EQ(j["groups"][0]["staleness"]["a_kept"]["mean"], 0.25);
  EXPECT_EQ(j["groups"][0]["staleness"]["intervals"][2], json::array({4, 40, 2, 0}));
}

TEST(ComparisonToJson, SurvivesEmptyAndBrokenResults) {
  RunGroup broken = fake_group("nan", {{NAN, NAN}});
  broken.runs[0].final_accuracy = broken.runs[0].seconds_per_step = NAN;
  broken.runs[0].epochs[0].train_seconds = INFINITY;
  broken.runs[0].activity_seconds = {{"forward", NAN}, {"inverse", INFINITY}};
  broken.runs[0].error = "\xff";
  for (const std::vector<RunGroup>& groups : {std::vector<RunGroup>{},
                                              {{"empty", {}}},
                                              {{"new", {RunResult{}}}},
                                              {broken},
                                              {broken, fake_group("good", {{0.9}})}})
    for (const auto& target : {std::optional<double>(), std::optional(0.9)})
      EXPECT_EQ(json_of(groups, target)["groups"].size(), groups.size());
}

}  // namespace
}  // namespace dkfac::app
