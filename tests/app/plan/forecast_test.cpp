#include "app/plan/forecast.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

namespace dkfac::app::planning {
namespace {

Network resnet(std::int64_t batch, std::int64_t ranks) {
  return network_of(
      {.name = "resnet50", .input = {224, 224, 3}, .classes = 1000, .compute = DType::f16},
      batch * ranks, batch);
}

Cluster machines(int ranks, Algorithm algorithm = Algorithm::nccl) {
  Cluster c{.processor = processor_of("h100"), .ranks = ranks, .algorithm = algorithm};
  c.inner = c.processor.inner;
  c.outer = c.processor.outer;
  return c;
}

std::vector<Forecast> at(const Network& network, const Cluster& cluster) {
  return forecasts(network, cluster, strategies({}, {10, 50}, cluster.ranks, cluster.per_node));
}

/// Two layers of 2^20 weights, at 2^20 operations and bytes a second: a product takes 2 s, a sum
/// over the two ranks 4 s.
TEST(Forecast, IsThatOfAHandComputedStep) {
  Network network{.name = "two",
                  .names = {"a", "b"},
                  .specs = {LinearSpec{1024, 1024, false}, LinearSpec{1024, 1024, false}},
                  .training_flops = 5 * 0x1p21};
  for (int i = 0; i < 2; ++i)
    network.layers.push_back({.name = network.names[static_cast<std::size_t>(i)],
                              .kind = PassKind::product,
                              .spec = i,
                              .flops = 0x1p21});
  Cluster c{.ranks = 2, .per_node = 2, .inner = {0x1p20, 0}, .outer = {1, 0}};
  c.processor.passes = 0x1p20;
  c.processor.gap = 0;
  c.processor.copy = 20 * 0x1p21;  // Passes over weights, gradient and momentum: 1 s.
  c.algorithm = Algorithm::direct;
  Strategy sgd{.name = "sgd", .type = optim::OptimizerType::sgd};
  sgd.curvature.communication.bucket_bytes = 1 << 22;
  // The first layer has no gradient of its input. Forward 0-4; layer b 4-6, its copy to 6.2, its
  // sum to 10.2, its input 6.2-8.2; layer a to 10.2, its copy to 10.4, its sum with the flags; the
  // update.
  const double flags = 42 * 4 / 0x1p20;
  const Forecast f = forecast(network, c, sgd);
  EXPECT_DOUBLE_EQ(f.seconds, 10 + 0.4 + 4 + flags + 1);
  EXPECT_DOUBLE_EQ(f.links, 8 + flags);
  // Without overlap both sums follow the passes.
  sgd.curvature.communication.overlap = false;
  EXPECT_DOUBLE_EQ(forecast(network, c, sgd).seconds, 10 + 0.4 + 8 + flags + 1);
}

TEST(Forecast, TakesNoLessThanItsLanesAndIsTheSumOfItsPhases) {
  const Network network = resnet(32, 64);
  for (const Forecast& f : at(network, machines(64))) {
    EXPECT_GE(f.seconds * (1 + 1e-12), f.links) << f.name;  // Sums of some 1,000 numbers.
    EXPECT_NEAR(std::accumulate(f.phases.begin(), f.phases.end(), 0.0), f.seconds,
                1e-12 * f.seconds)
        << f.name;
    EXPECT_LE(f.seconds, f.slowest * (1 + 1e-12)) << f.name;
  }
}

TEST(Forecast, IsMonotoneInEveryRate) {
  const Network network = resnet(32, 64);
  for (const Algorithm algorithm : {Algorithm::nccl, Algorithm::direct, Algorithm::halving}) {
    const std::vector<Forecast> base = at(network, machines(64, algorithm));
    const auto no_faster = [&](const char* what, auto change) {
      Cluster slower = machines(64, algorithm);
      change(slower);
      const std::vector<Forecast> all = at(network, slower);
      bool changed = false;
      for (std::size_t i = 0; i < all.size(); ++i) {
        EXPECT_GE(all[i].seconds, base[i].seconds * (1 - 1e-12)) << what << ' ' << all[i].name;
        changed |= all[i].seconds > base[i].seconds * 1.0001;
      }
      EXPECT_TRUE(changed) << what << " changes nothing";
    };
    no_faster("outer", [](Cluster& c) { c.outer.bytes_per_s /= 8; });
    no_faster("inner", [](Cluster& c) { c.inner.bytes_per_s /= 64; });
    no_faster("latency", [](Cluster& c) { c.outer.latency *= 8; });
    no_faster("products", [](Cluster& c) { c.processor.products16 /= 2; });
    no_faster("inversions", [](Cluster& c) { c.processor.cholesky_one /= 2; });
    no_faster("copy", [](Cluster& c) { c.processor.copy /= 2; });
  }
}

TEST(Forecast, CountsWhatIntervalsSave) {
  const Network network = resnet(32, 8);
  const Cluster c = machines(8);
  const auto of = [&](Intervals intervals) {
    const auto all = forecasts(network, c, strategies({}, intervals, 8, 8));
    return *std::ranges::find_if(all, [](const Forecast& f) {
      return f.name.starts_with("kfac") && f.name.find('/') != std::string::npos &&
             f.name != "kfac 1/1";
    });
  };
  EXPECT_GT(of({1, 10}).seconds, of({10, 10}).seconds);
  EXPECT_GT(of({10, 10}).seconds, of({10, 100}).seconds);
  EXPECT_GT(of({10, 100}).to_sgd, 1);
}

TEST(Forecast, CountsTheOwnersStatisticsAloneWhereTheyAreLocal) {
  const Network network = resnet(32, 8);
  Strategy global{.name = "global"};
  global.curvature.refresh.statistics_interval = global.curvature.refresh.inverse_interval = 1;
  Strategy local = global;
  local.curvature.distribution.local_statistics = true;
  const Forecast all = forecast(network, machines(64), global),
                 own = forecast(network, machines(64), local);
  EXPECT_LT(own.seconds, all.seconds);
  EXPECT_LT(own.sent.outer, all.sent.outer);
  EXPECT_LT(own.memory, all.memory);
  // On one rank there are no others.
  EXPECT_EQ(forecast(network, machines(1), local).seconds,
            forecast(network, machines(1), global).seconds);
}

/// The record of the predicted step on an H200 was made from bytes, operations and launches of each
/// kernel (records/benchmarks/gpu/predicted.json): the same rates, another count.
TEST(Forecast, AgreesWithTheStepThatWasCountedByKernels) {
  Cluster c{.processor = processor_of("h200"), .ranks = 1};
  const Network network = resnet(256, 1);
  kfac::CurvatureOptions options;
  options.precondition_tf32 = true;
  const auto all = forecasts(network, c, strategies(options, {20, 100}, 1, 8));
  EXPECT_NEAR(all[0].seconds, 31.8e-3, 0.15 * 31.8e-3);
  const auto kfac = std::ranges::find(all, "kfac 20/100", &Forecast::name);
  ASSERT_NE(kfac, all.end());
  EXPECT_NEAR(kfac->seconds - all[0].seconds, 2.7e-3, 0.3 * 2.7e-3);
}

TEST(Recommend, StaysWithinItsBudgetAndTakesTheFreshestInverses) {
  const Network network = resnet(32, 8);
  const auto tight = recommend(network, machines(8), {}, 0.2),
             loose = recommend(network, machines(8), {}, 2);
  ASSERT_TRUE(tight && loose);
  EXPECT_LE(tight->forecast.to_sgd, 1.2);
  EXPECT_LE(loose->forecast.to_sgd, 3);
  EXPECT_LT(loose->intervals.inverses, tight->intervals.inverses);
  EXPECT_TRUE(tight->fits && loose->fits);
  EXPECT_FALSE(recommend(network, machines(8), {}, 1e-6));
}

TEST(Recommend, TellsWhatIsTooLargeFromWhatIsTooSlow) {
  const Network network = resnet(32, 8);
  const auto ample = recommend(network, machines(8), {}, 0.2);
  Cluster small = machines(8);
  small.processor.memory = 1e6;
  const auto advice = recommend(network, small, {}, 0.2);
  ASSERT_TRUE(ample && advice);
  EXPECT_FALSE(advice->fits);
  EXPECT_EQ(advice->intervals.inverses, ample->intervals.inverses);
  EXPECT_FALSE(recommend(network, small, {}, 1e-6));
}

}  // namespace
}  // namespace dkfac::app::planning
