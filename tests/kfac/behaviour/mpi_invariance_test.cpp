#include <cstdio>

#include <gtest/gtest.h>

#include "dkfac/comm/launch.h"

#include "kfac/split_layers.h"
#include "support/natural_gradient.h"
#include "support/near.h"
#include "support/plain_training.h"

namespace dkfac::testing {
namespace {

std::shared_ptr<comm::Communicator> world;  // NOLINT: set once by main

kfac::CurvatureOptions curvature(bool overlap) {
  kfac::CurvatureOptions options = natural_gradient();
  options.damping = 1e-2;
  options.dtype = DType::f64;
  options.communication.bucket_bytes = 4096;
  options.communication.overlap = overlap;
  return options;
}

std::vector<double> train_over(const std::shared_ptr<comm::Communicator>& comm,
                               const MakeOptimizer& make) {
  return train<double>(comm, make).parameters();
}

TEST(OverMpi, KfacGivesTheWeightsOfASingleRank) {
  for (const bool overlap : {true, false}) {
    const MakeOptimizer make = [overlap](auto comm) {
      return optim::make_kfac(comm, {.curvature = curvature(overlap)});
    };
    // Measured below 1e-13 after 20 steps.
    EXPECT_TRUE(near(train_over(world, make), train_over(comm::make_self(), make), 1e-10));
  }
}

TEST(OverMpi, KfacGivesTheBitsOfRanksInOneProcess) {
  const MakeOptimizer make = [](auto comm) {
    return optim::make_kfac(comm, {.curvature = curvature(true)});
  };
  EXPECT_EQ(train_over(world, make), train_ranks<double>(world->size(), make));
}

TEST(OverMpi, FactorsOnDifferentRanksGiveTheBitsOfWholeLayersInOneProcess) {
  const SplitRun divided = run_split(world, split_options(true));
  EXPECT_EQ(is_divided(divided), world->size() > 1) << divided.description;
  std::vector<double> whole;
  comm::run_ranks(world->size(), [&](auto comm) {
    const SplitRun run = run_split(comm, split_options(false));
    if (comm->rank() == 0) whole = run.weights;
  });
  EXPECT_EQ(divided.weights, whole);
}

TEST(OverMpi, FirstOrderGivesTheWeightsOfASingleRank) {
  const MakeOptimizer sgd = [](auto comm) {
    return optim::make_sgd(comm, {.communication = {.bucket_bytes = 512}});
  };
  const MakeOptimizer lars = [](auto comm) { return optim::make_lars(comm, {.eta = 0.1}); };
  const MakeOptimizer muon = [](auto comm) { return optim::make_muon(comm, {}); };
  for (const MakeOptimizer& make : {sgd, lars, muon})
    EXPECT_TRUE(near(train_over(world, make), train_over(comm::make_self(), make), 1e-10));
}

TEST(OverMpi, PreconditionerGivesTheWeightsOfASingleRank) {
  const auto run = [](const std::shared_ptr<comm::Communicator>& comm) {
    return train_preconditioned<double>(comm, curvature(true)).parameters();
  };
  EXPECT_TRUE(near(run(world), run(comm::make_self()), 1e-10));
}

TEST(OverMpi, ABadGradientOnOneRankSkipsTheStepOnAll) {
  const auto optimizer = optim::make_sgd(world, {});
  double w = 1, g = world->rank() == world->size() - 1 ? std::nan("") : 1.0;
  const auto id = optimizer->add_layer("a", PlainSpec{.weight = 1},
                                       {view_of(&w, {1}), {}, view_of(&g, {1}), {}});
  optimizer->prepare();
  optimizer->grads_ready(id, Stream::cpu(), {});
  const kfac::StepReport report = optimizer->step({.lr = 0.1, .flags = {}}, Stream::cpu());
  EXPECT_FALSE(report.updated);
  EXPECT_EQ(report.agreement.nonfinite_gradient, 1);
  EXPECT_EQ(w, 1);
}

}  // namespace
}  // namespace dkfac::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  int result = 1;
  {
    const dkfac::comm::World launched;
    dkfac::testing::world = launched.comm();
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    if (dkfac::testing::world->rank() != 0)
      delete listeners.Release(listeners.default_result_printer());
    try {
      // A failure on any rank fails the run: every process returns its own finite_check.
      result = RUN_ALL_TESTS();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      dkfac::comm::World::terminate(1);
    }
    dkfac::testing::world.reset();
  }
  return result;
}
