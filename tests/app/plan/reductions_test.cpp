#include "app/plan/reductions.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "dkfac/core/ops.h"

// The formulas of docs/distribution.md, "Bytes", which are held against StepReport::bytes of runs.
namespace dkfac::app::planning {
namespace {

constexpr double kFlags = 42;

Network small() {
  return network_of({.name = "lenet-bn", .input = {28, 28, 1}, .classes = 10}, 256, 32);
}

Strategy kfac_on(int workers, int ranks) {
  Strategy s{.name = "kfac"};
  s.curvature.distribution.grad_worker_fraction =
      workers > 1 ? static_cast<double>(workers) / ranks : 0;
  s.curvature.inverse.block_width = -1;
  s.curvature.communication.bucket_bytes = 20000;
  return s;
}

struct Sums {
  double statistics = 0, gradients = 0;
};
Sums sums_of(const std::vector<Reduction>& all) {
  Sums sums;
  for (const Reduction& r : all) (r.statistics ? sums.statistics : sums.gradients) += r.bytes;
  return sums;
}

double statistics_of(const Network& network) {
  double elements = 0;
  for (const LayerSpec& spec : network.specs)
    if (has_factors(spec))
      elements +=
          static_cast<double>(ops::packed_size(a_dim(spec)) + ops::packed_size(g_dim(spec)));
    else if (const auto* norm = std::get_if<NormSpec>(&spec))
      elements += 3 * static_cast<double>(norm->channels);
  return elements;
}

TEST(Reductions, HaveTheBytesOfTheFormulas) {
  const Network network = small();
  for (const int ranks : {1, 2, 8})
    for (const int workers : {1, 2}) {
      if (workers > ranks) continue;
      for (const bool narrow : {false, true}) {
        Strategy strategy = kfac_on(workers, ranks);
        if (narrow)
          strategy.curvature.communication.statistics_wire =
              strategy.curvature.communication.gradient_wire = DType::bf16;
        const Ownership o = ownership_of(network, strategy, ranks, false);
        const Sums sums = sums_of(reductions(network, o, ranks, true));
        const double wire = narrow ? 2 : 4;
        EXPECT_EQ(sums.statistics, wire * statistics_of(network));
        // The flags are in a bucket of their own, 4 bytes wide, where gradients are narrower.
        EXPECT_EQ(sums.gradients, wire * (network.parameters() + kFlags * o.columns));
        EXPECT_EQ(sums_of(reductions(network, o, ranks, false)).statistics, 0);
      }
    }
}

TEST(Reductions, AreLaunchedInTheOrderOfTheirLastBlocks) {
  const Network network = small();
  const Ownership o = ownership_of(network, kfac_on(1, 4), 4, false);
  const std::vector<Reduction> all = reductions(network, o, 4, true);
  EXPECT_GT(all.size(), 6U);  // Several buckets of each kind.
  EXPECT_TRUE(std::ranges::is_sorted(all, {}, &Reduction::time));
  for (const Reduction& r : all) EXPECT_LE(r.largest, r.bytes);
}

TEST(Gathers, AreWeightsOnceAndInversesOfTheLargestColumn) {
  const Network network = small();
  for (const int workers : {1, 2, 4}) {
    const Ownership o = ownership_of(network, kfac_on(workers, 4), 4, false);
    const Gathers g = gathers(network, o, 4);
    EXPECT_EQ(g.weights, workers < 4 ? 4 * network.parameters() : 0);
    std::vector<double> columns(static_cast<std::size_t>(o.columns));
    for (std::size_t i = 0; i < network.specs.size(); ++i)
      if (const LayerSpec& spec = network.specs[i]; has_factors(spec))
        columns[static_cast<std::size_t>(o.owners[i].layer % o.columns)] +=
            4 *
            static_cast<double>(ops::packed_size(a_dim(spec)) + ops::packed_size(g_dim(spec)) + 6);
    EXPECT_EQ(g.inverses, workers > 1 ? *std::ranges::max_element(columns) : 0);
    EXPECT_EQ(g.message, 0);
  }
  const Ownership first =
      ownership_of(network, {.name = "sgd", .type = optim::OptimizerType::sgd}, 4, false);
  EXPECT_EQ(gathers(network, first, 4).weights, 0);
}

}  // namespace
}  // namespace dkfac::app::planning
