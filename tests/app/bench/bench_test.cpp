// Benchmarks: their statistics, their checks (which must be able to fail), their output.

#include "app/bench/bench.h"

#include <cmath>
#include <sstream>

#include <gtest/gtest.h>

#include "dkfac/core/ops.h"
#include "dkfac/core/random.h"
#include "dkfac/core/tensor.h"
#include "dkfac/kfac/inverse.h"
#include "dkfac/kfac/statistics.h"

#include "app/bench/check.h"
#include "app/bench/measure.h"
#include "support/temp_folder.h"

namespace dkfac::app {
namespace {

using bench::quartiles_of;
using nlohmann::json;

TEST(Quartiles, AreThoseOfTheSortedValues) {
  const bench::Quartiles q = quartiles_of({9, 1, 5, 3, 7});
  EXPECT_DOUBLE_EQ(q.min, 1);
  EXPECT_DOUBLE_EQ(q.lower, 3);
  EXPECT_DOUBLE_EQ(q.median, 5);
  EXPECT_DOUBLE_EQ(q.upper, 7);
  EXPECT_DOUBLE_EQ(q.mean, 5);
  EXPECT_EQ(q.count, 5);
}

TEST(Quartiles, StandBetweenTheirNeighbours) {
  const bench::Quartiles q = quartiles_of({1, 2, 3, 10});
  EXPECT_DOUBLE_EQ(q.lower, 1.75);  // Position 0.75 of 0..3.
  EXPECT_DOUBLE_EQ(q.median, 2.5);
  EXPECT_DOUBLE_EQ(q.upper, 4.75);
  EXPECT_DOUBLE_EQ(q.mean, 4);
}

TEST(Quartiles, OfOneValueAndOfNone) {
  EXPECT_DOUBLE_EQ(quartiles_of({4}).lower, 4);
  EXPECT_DOUBLE_EQ(quartiles_of({4}).upper, 4);
  EXPECT_EQ(quartiles_of({}).count, 0);
}

TEST(TimeCalls, LeavesTheWarmUpOut) {
  int calls = 0;
  EXPECT_EQ(bench::time_calls(2, 5, [&] { ++calls; }).size(), 5u);
  EXPECT_EQ(calls, 7);
}

/// A convolution of every kind of geometry, its input and its A.
struct ConvFactor {
  explicit ConvFactor(Conv2dSpec s) : spec(s) {
    Random random(3);
    fill_normal(x, 0, 1, random);
    kfac::compute_a(ctx, spec, {.data = x, .global_batch = 4}, 0, a);
  }
  Context ctx;
  LayerSpec spec;
  Tensor x = Tensor::empty(ctx, {4, 7, 6, 3});
  Tensor a = Tensor::empty(ctx, {dkfac::a_dim(spec), dkfac::a_dim(spec)});
};

TEST(FactorCheck, AcceptsARightFactor) {
  for (const Conv2dSpec& spec :
       {Conv2dSpec{.in = 3, .out = 5, .window = Window::square(3, 1, 1)},
        Conv2dSpec{.in = 3,
        .out = 5,
        .window = {.kernel_h = 2, .kernel_w = 3, .stride_h = 2},
        .bias = false},
        Conv2dSpec{.in = 3,
        .out = 5,
        .window = {.kernel_h = 2, .kernel_w = 2, .dilation_h = 2, .dilation_w = 3}},
        Conv2dSpec{.in = 3, .out = 5, .window = {.kernel_h = 2, .kernel_w = 4}, .same = true}}) {
    ConvFactor f(spec);
    // c = 100, n = 1: rounding of sums of mixed signs, seen through one vector.
    EXPECT_LE(bench::error_of_a(f.ctx, f.spec, f.x, 4, f.a), 100 * 6e-8) << describe(f.spec);
  }
}

TEST(FactorCheck, SeesAWrongElementAndAWrongScale) {
  ConvFactor f({.in = 3, .out = 5, .window = Window::square(3, 1, 1)});
  EXPECT_GT(bench::error_of_a(f.ctx, f.spec, f.x, 5, f.a), 0.1);
  const std::int64_t d = dkfac::a_dim(f.spec);
  f.a.data<float>()[10 * d + 4] += 1;
  EXPECT_GT(bench::error_of_a(f.ctx, f.spec, f.x, 4, f.a), 1e-3);
  f.a.data<float>()[10 * d + 4] = NAN;
  EXPECT_FALSE(bench::error_of_a(f.ctx, f.spec, f.x, 4, f.a) <= 1e30);
}

TEST(FactorCheck, JudgesLinearLayersAndGradients) {
  Context ctx;
  Random random(4);
  const LayerSpec spec = LinearSpec{6, 3};
  Tensor x = Tensor::empty(ctx, {8, 6}), dy = Tensor::empty(ctx, {8, 2, 2, 3});
  fill_normal(x, 0, 1, random);
  fill_normal(dy, 0, 1, random);
  Tensor a = Tensor::empty(ctx, {7, 7}), g = Tensor::empty(ctx, {3, 3});
  kfac::compute_a(ctx, spec, {.data = x, .global_batch = 8}, 0, a);
  EXPECT_LE(bench::error_of_a(ctx, spec, x, 8, a), 100 * 6e-8);  // As above.
  const LayerSpec conv = Conv2dSpec{.in = 1, .out = 3};
  kfac::compute_g(ctx, conv, {.data = dy, .global_batch = 8, .sample_scale = 2.0}, 0, g);
  EXPECT_LE(bench::error_of_g(ctx, dy, 8, 2.0, g), 100 * 6e-8);
  EXPECT_GT(bench::error_of_g(ctx, dy, 8, 1.0, g), 0.1) << "a factor of 4 too large";
}

TEST(InverseCheck, TellsAnInverseFromSomethingElse) {
  Context ctx;
  Random random(5);
  const std::int64_t d = 20;
  Tensor x = Tensor::empty(ctx, {50, d}), m = Tensor::zeros(ctx, {d, d});
  fill_normal(x, 0, 1, random);
  ops::syrk(ctx, 1.0 / 50, x, 0, m);
  Tensor packed = Tensor::empty(ctx, {ops::packed_size(d)}), inverse = Tensor::empty(ctx, {d, d});
  ops::pack_lower(ctx, m, packed);
  std::int32_t info = 0;
  kfac::invert_factor(ctx, packed, 0.1, inverse, view_of(&info, {1}));
  ASSERT_EQ(info, 0);
  EXPECT_LE(bench::inverse_residual(packed, 0.1, inverse), 8 * d * 6e-8 * 40);  // c = 8, cond 40
  EXPECT_GT(bench::inverse_residual(packed, 0.2, inverse), 1e-2) << "of another damping";
  inverse.data<float>()[3 * d + 5] += 0.1F;
  EXPECT_GT(bench::inverse_residual(packed, 0.1, inverse), 1e-3);
}

/// A small network that every benchmark finishes at once.
BenchCommand small(BenchKind kind) {
  BenchCommand command;
  command.kind = kind;
  command.model = "lenet-bn";
  command.input = {12, 12, 1};
  command.batch = 8;
  command.steps = 4;
  command.warm_up = 1;
  command.threads = 1;
  command.max_bytes = 1 << 14;
  command.json = "-";
  return command;
}

struct Output {
  int code = 0;
  json result;
  std::string text, errors;
};

Output run_it(const BenchCommand& command) {
  std::ostringstream out, err;
  Output output;
  output.code = run(command, Terminal{out, err});
  output.text = out.str();
  output.errors = err.str();
  if (command.json == "-" && !output.text.empty()) output.result = json::parse(output.text);
  return output;
}

TEST(Bench, StepsGivePhasesRatiosAndTheRoof) {
  BenchCommand command = small(BenchKind::step);
  command.optimizers = {"sgd", "lars", "adamw", "muon", "kfac"};
  const Output output = run_it(command);
  ASSERT_EQ(output.code, 0) << output.errors;
  EXPECT_TRUE(output.result.at("correct"));
  EXPECT_GT(output.result.at("roof").at("sgemm_gflops"), 0);
  ASSERT_EQ(output.result.at("results").size(), 5u);
  EXPECT_EQ(output.result.at("results").at(0).at("ratio_to_first"), 1);
  for (const json& result : output.result.at("results")) {
    EXPECT_EQ(result.at("ms").at("count"), 4);
    EXPECT_GT(result.at("activity_ms").at("forward"), 0);
    EXPECT_GT(result.at("network_flops"), 0);
    EXPECT_EQ(result.at("lr"), 1e-3);
    EXPECT_LT(result.at("loss_last"), result.at("loss_first"));
  }
  EXPECT_GT(output.result.at("results").at(4).at("activity_ms").at("inverse"), 0);
}

TEST(Bench, AmortizesOverTheIntervals) {
  BenchCommand command = small(BenchKind::step);
  command.optimizers = {"kfac"};
  command.steps = 8;
  command.set = {"optimizer.statistics_interval=2", "optimizer.inverse_interval=4"};
  const json result = run_it(command).result.at("results").at(0);
  const json& kinds = result.at("ms_by_kind");
  const auto median = [&](const char* kind) { return kinds.at(kind).at("median").get<double>(); };
  EXPECT_EQ(kinds.at("plain").at("count"), 4);
  // Of four steps: two plain, one with statistics, one with inverses too. c = 8 roundings.
  const double expected =
      (2 * median("plain") + median("statistics") + median("statistics+inverse")) / 4;
  EXPECT_NEAR(result.at("ms_per_step").get<double>(), expected, 8 * 2.3e-16 * expected);
}

TEST(Bench, NoScheduleUndoesTheCycle) {
  BenchCommand command = small(BenchKind::step);
  command.optimizers = {"kfac"};
  command.warm_up = 0;
  command.cycle = {2, 4};
  command.set = {"optimizer.damping=0.001", "optimizer.damping_schedule=warmup",
                 "optimizer.interval_schedule=ramp", "optimizer.statistics_interval=2",
                 "optimizer.inverse_interval=4"};
  const json kinds = run_it(command).result.at("results").at(0).at("ms_by_kind");
  ASSERT_EQ(kinds.size(), 3u) << kinds.dump();
  EXPECT_EQ(kinds.at("statistics+inverse").at("count"), 1);
  EXPECT_EQ(kinds.at("statistics").at("count"), 1);
  EXPECT_EQ(kinds.at("plain").at("count"), 2);
}

TEST(Bench, StepsOfSeveralRanksAgree) {
  BenchCommand command = small(BenchKind::step);
  command.ranks = 2;
  const Output output = run_it(command);
  EXPECT_EQ(output.code, 0) << output.errors;
  EXPECT_EQ(output.result.at("ranks"), 2);
  EXPECT_GT(output.result.at("results").at(0).at("bytes_to_collectives"), 0);
}

TEST(Bench, AWrongResultIsAFailureAndIsShown) {
  BenchCommand command = small(BenchKind::step);
  command.optimizers = {"sgd"};
  command.set = {"optimizer.weight_decay=1e30"};
  const Output output = run_it(command);
  EXPECT_EQ(output.code, 80);
  EXPECT_FALSE(output.result.at("correct"));
  EXPECT_NE(output.errors.find("not finite"), std::string::npos) << output.errors;
}

TEST(Bench, ALossThatRoseIsAFailure) {
  BenchCommand command = small(BenchKind::step);
  command.optimizers = {"sgd"};
  command.set = {"lr.lr=3"};
  const Output output = run_it(command);
  EXPECT_EQ(output.code, 80);
  EXPECT_NE(output.errors.find("loss of the constant batch rose"), std::string::npos)
      << output.errors;
}

TEST(Bench, FactorsAndInversesOfEveryLayer) {
  const json factors = run_it(small(BenchKind::factors)).result;
  EXPECT_TRUE(factors.at("correct"));
  EXPECT_EQ(factors.at("factors").size(), 10u) << "A and G of five layers";
  const json inverses = run_it(small(BenchKind::inverse)).result;
  EXPECT_TRUE(inverses.at("correct"));
  ASSERT_EQ(inverses.at("inverses").size(), 10u);
  EXPECT_EQ(inverses.at("inverses").at(0).at("dim"), factors.at("factors").at(0).at("dim"));
}

TEST(Bench, CollectivesAreCheckedAtEverySize) {
  BenchCommand command = small(BenchKind::comm);
  command.ranks = 3;
  const Output output = run_it(command);
  EXPECT_EQ(output.code, 0) << output.errors;
  const json& all = output.result.at("collectives");
  ASSERT_EQ(all.size(), 6u) << "three of 1 KiB and of 8 KiB";
  for (const json& one : all) EXPECT_TRUE(one.at("correct"));
}

TEST(Bench, RanksCommunicateAsTheirSettingsSay) {
  for (const BenchKind kind : {BenchKind::step, BenchKind::comm}) {
    BenchCommand command = small(kind);
    command.ranks = 2;
    command.set = {"run.hierarchical=2", "run.comm_check=full", "run.comm_timeout_s=60"};
    const Output output = run_it(command);
    EXPECT_EQ(output.code, 0) << output.errors;
    if (kind == BenchKind::comm) {
      EXPECT_EQ(output.result.at("backend"), "hierarchical");
    }
    command.set = {"run.hierarchical=3"};
    const Output refused = run_it(command);
    EXPECT_EQ(refused.code, 64);
    EXPECT_NE(refused.errors.find("3 ranks per node"), std::string::npos) << refused.errors;
  }
}

TEST(Bench, WritesTheTableAndTheFile) {
  const testing::TempFolder folder;
  BenchCommand command = small(BenchKind::factors);
  command.json = folder.path() / "bench.json";
  const Output output = run_it(command);
  EXPECT_NE(output.text.find("roof: SGEMM"), std::string::npos) << output.text;
  std::ifstream in(command.json);
  EXPECT_EQ(json::parse(in).at("benchmark"), "factors");
}

TEST(Bench, RefusesWhatItCannotDo) {
  const auto code_of = [](const std::function<void(BenchCommand&)>& change) {
    BenchCommand command = small(BenchKind::step);
    change(command);
    return run_it(command).code;
  };
  EXPECT_EQ(code_of([](auto& c) { c.model = "resnet999"; }), 64);
  EXPECT_EQ(code_of([](auto& c) { c.optimizers = {"adam"}; }), 64);
  EXPECT_EQ(code_of([](auto& c) { c.input = {12, 0, 1}; }), 64);
  EXPECT_EQ(code_of([](auto& c) { c.steps = 0; }), 64);
  EXPECT_EQ(code_of([](auto& c) { c.batch = 0; }), 64);
  EXPECT_EQ(code_of([](auto& c) { c.set = {"run.device=cuda"}; }), 64);
  for (const char* setting : {"nonsense=1", "lr.lr=0.1", "run.device=cuda", "run.hierarchical=-1"})
    EXPECT_EQ(code_of([&](auto& c) {
                c.kind = BenchKind::comm;
                c.set = {setting};
              }),
              64)
        << setting;
  EXPECT_EQ(code_of([](auto& c) {
              c.kind = BenchKind::factors;
              c.ranks = 2;
            }),
            64);
  EXPECT_EQ(code_of([](auto& c) {
              c.optimizers = {"sgd"};
              c.set = {"optimizer.damping=1"};
            }),
            64);
}

}  // namespace
}  // namespace dkfac::app
