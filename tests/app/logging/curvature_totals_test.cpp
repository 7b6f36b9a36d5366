#include "app/logging/curvature_totals.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "app/checkpoint/run_record.h"

namespace dkfac::app {
namespace {

using kfac::StatisticKind;
using kfac::StatisticReport;

TEST(StatisticSizes, AreThoseOfPackedTriangles) {
  using kfac::NormFisher;
  const auto sizes = [](const LayerSpec& spec, NormFisher fisher = NormFisher::unit_wise) {
    return statistic_sizes(spec, fisher);
  };
  EXPECT_EQ(sizes(LinearSpec{.in = 3, .out = 2}), (StatisticSizes{10, 3, 0}));
  EXPECT_EQ(sizes(LinearSpec{.in = 3, .out = 2, .bias = false}), (StatisticSizes{6, 3, 0}));
  // 2 groups of 2 * 9 + 1 inputs and 3 outputs.
  const Conv2dSpec conv{.in = 4, .out = 6, .window = Window::square(3), .groups = 2};
  EXPECT_EQ(sizes(conv), (StatisticSizes{2 * 190, 2 * 6, 0}));
  EXPECT_EQ(sizes(EmbeddingSpec{.vocabulary = 50, .width = 3}), (StatisticSizes{50, 6, 0}));
  const NormSpec norm{.channels = 4};
  EXPECT_EQ(sizes(norm, NormFisher::diagonal)[2], 8);
  EXPECT_EQ(sizes(norm, NormFisher::unit_wise)[2], 12);
  EXPECT_EQ(sizes(norm, NormFisher::full)[2], 36);
  const NormSpec shift{.channels = 4, .scale = false};
  EXPECT_EQ(sizes(shift, NormFisher::unit_wise)[2], 4);
  EXPECT_EQ(sizes(PlainSpec{.weight = 5}), StatisticSizes{});
}

/// Layer 0 has factors of 10 and 3 elements, layer 1 a BatchNorm of 12.
const std::vector<StatisticSizes> kSizes{{10, 3, 0}, {0, 0, 12}};

kfac::StepReport step_report(std::int64_t step, const std::vector<StatisticReport>& statistics) {
  kfac::StepReport report;
  report.step = step;
  report.updated = true;
  report.statistics = statistics;
  return report;
}

std::vector<StatisticReport> statistics(bool a, bool g, bool norm) {
  return {{0, StatisticKind::a, a, 2, 1, 0.5},
          {0, StatisticKind::g, g, 4, 0, -1},
          {1, StatisticKind::norm, norm, 6, 2, 0.25}};
}

TEST(CurvatureResult, AddsUpWhatWasRenewedAndWhatCouldHaveBeen) {
  CurvatureResult result;
  const auto first = statistics(true, true, true), second = statistics(false, true, false);
  kfac::StepReport report = step_report(1, first);
  add_step(result, report, kSizes, KeepIntervals::yes);
  report = step_report(2, second);
  report.bytes = 100;
  report.bytes_skipped = 70;
  report.flops = 15;
  report.flops_skipped = 5;
  add_step(result, report, kSizes, KeepIntervals::yes);
  EXPECT_EQ(result.a_kept(), 10.0 / 20);
  EXPECT_EQ(result.g_kept(), 18.0 / 30);
  EXPECT_EQ(result.bytes, 100);
  EXPECT_EQ(result.bytes_skipped, 70);
  EXPECT_EQ(result.flops_skipped, 5);
  EXPECT_EQ(result.bytes_saved(), 70.0 / 170);
  EXPECT_EQ(result.flops_saved(), 5.0 / 20);
  EXPECT_EQ(CurvatureResult{}.flops_saved(), 0);
  ASSERT_EQ(result.intervals.size(), 2U);
  EXPECT_EQ(result.intervals[1], (CurvatureResult::Intervals{2, 2, 4, 6}));
  // A step without an inverse has refreshed statistics; a rejected one leaves no trace.
  report.updated = false;
  add_step(result, report, kSizes, KeepIntervals::no);
  EXPECT_EQ(result.a_all, 30);
  report.agreement.nonfinite_loss = 1;
  add_step(result, report, kSizes, KeepIntervals::yes);
  EXPECT_EQ(result.a_all, 30);
  EXPECT_EQ(result.intervals.size(), 2U);
}

TEST(CurvatureResult, KeepsFewIntervalsAtEqualDistances) {
  CurvatureResult whole, halves;
  const auto reports = statistics(true, true, true);
  for (std::int64_t step = 1; step <= 5000; ++step)
    add_step(whole, step_report(step, reports), kSizes, KeepIntervals::yes);
  EXPECT_GE(whole.intervals.size(), 100U);
  EXPECT_LE(whole.intervals.size(), 256U);
  const std::int64_t stride = whole.intervals[1].step - whole.intervals[0].step;
  for (std::size_t i = 0; i < whole.intervals.size(); ++i)
    EXPECT_EQ(whole.intervals[i].step, 1 + static_cast<std::int64_t>(i) * stride);
}

TEST(CurvatureResult, ComesBackFromARecord) {
  RunRecord record;
  CurvatureResult& c = record.result.curvature;
  add_step(c, step_report(3, statistics(true, false, true)), kSizes, KeepIntervals::yes);
  c.bytes_skipped = 0.1;
  c.flops = 3e15;
  c.flops_skipped = 1e15;
  c.inverses = {5, 4, 3, 2, 1};
  const CurvatureResult back = parse_record(to_text(record), "here").result.curvature;
  EXPECT_EQ(back.a_renewed, c.a_renewed);
  EXPECT_EQ(back.a_all, c.a_all);
  EXPECT_EQ(back.g_renewed, c.g_renewed);
  EXPECT_EQ(back.g_all, c.g_all);
  EXPECT_EQ(back.bytes_skipped, c.bytes_skipped);
  EXPECT_EQ(back.flops, c.flops);
  EXPECT_EQ(back.flops_skipped, c.flops_skipped);
  EXPECT_EQ(back.inverses, c.inverses);
  EXPECT_EQ(back.intervals, c.intervals);
  EXPECT_TRUE(parse_record(to_text(RunRecord{}), "here").result.curvature.empty());
}

TEST(CurvatureJson, NamesEachStatistic) {
  CurvatureResult result;
  result.inverses = {7, 0, 1, 0, 2};
  const auto reports = statistics(true, false, true);
  kfac::StepReport report = step_report(1, reports);
  report.kl_factor = 0.5;
  report.statistics_interval = 2;
  report.inverse_interval = 10;
  report.overhead = 0.125;
  add_step(result, report, kSizes, KeepIntervals::no);
  EXPECT_TRUE(result.intervals.empty());
  const std::vector<std::string> layers{"fc", "norm"};
  const auto parsed = nlohmann::json::parse(curvature_json(report, result, layers));
  EXPECT_EQ(parsed.at("kl_factor"), 0.5);
  EXPECT_EQ(parsed.at("statistics_interval"), 2);
  EXPECT_EQ(parsed.at("inverse_interval"), 10);
  EXPECT_EQ(parsed.at("overhead"), 0.125);
  EXPECT_EQ(parsed.at("a_kept"), 1.0);
  EXPECT_EQ(parsed.at("g_kept"), 12.0 / 15);
  EXPECT_EQ(parsed.at("inverses").at("kept"), 2);
  EXPECT_EQ(parsed.at("kinds").at("a").at("interval"), 2.0);
  EXPECT_EQ(parsed.at("kinds").at("a").at("drift"), 0.5);
  EXPECT_TRUE(parsed.at("kinds").at("g").at("drift").is_null());
  ASSERT_EQ(parsed.at("statistics").size(), 3U);
  EXPECT_EQ(parsed.at("statistics")[2].at("layer"), "norm");
  EXPECT_EQ(parsed.at("statistics")[2].at("kind"), "norm");
  EXPECT_EQ(parsed.at("statistics")[1].at("renewed"), false);
}

}  // namespace
}  // namespace dkfac::app
