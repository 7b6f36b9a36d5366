#include <gtest/gtest.h>

#include "support/natural_gradient.h"
#include "support/near.h"
#include "support/plain_training.h"

// grad_worker_fraction changes which ranks compute and what is sent, and nothing else. Every
// training below also compares the bits of all ranks after each step.
namespace dkfac::testing {
namespace {

// As for the number of ranks: differences of 20 steps stay far below.
constexpr double kTolerance = 1e-10;

optim::KfacOptions base() {
  optim::KfacOptions options{.curvature = natural_gradient()};
  options.curvature.damping = 1e-2;
  options.curvature.dtype = DType::f64;
  options.curvature.communication.bucket_bytes = 4096;
  return options;
}

struct Method {
  std::string name;
  optim::KfacOptions options{.curvature = natural_gradient()};
};

std::vector<Method> methods() {
  std::vector<Method> all{{"Default", base()}};
  Method paper{"Paper", base()};
  paper.options.momentum_rule = optim::MomentumRule::paper;
  paper.options.initial_lr = 0.05;
  paper.options.rescale = optim::Rescale::always;
  all.push_back(paper);
  Method lazy{"Lazy", base()};
  lazy.options.curvature.refresh.statistics_interval = 2;
  lazy.options.curvature.refresh.inverse_interval = 3;
  lazy.options.rescale = optim::Rescale::shrink;
  lazy.options.weight_decay = 1e-2;
  all.push_back(lazy);
  Method adamw{"Adamw", base()};
  adamw.options.update = optim::DirectionUpdate::adamw;
  adamw.options.epsilon = 1e-4;
  adamw.options.weight_decay = 1e-2;
  all.push_back(adamw);
  Method eigen{"Eigen", base()};
  eigen.options.curvature.inverse.method = kfac::InverseMethod::eigen;
  eigen.options.curvature.statistics.norm_fisher = kfac::NormFisher::diagonal;
  all.push_back(eigen);
  // What a normalisation has is sent at once, beside inverses that are sent later.
  Method delayed{"Delayed", base()};
  delayed.options.curvature.refresh.delay_inverses = true;
  delayed.options.curvature.refresh.inverse_interval = 3;
  all.push_back(delayed);
  Method blocks{"Blocks", base()};
  blocks.options.curvature.inverse.block_width = 8;
  blocks.options.curvature.refresh.inverse_interval = 3;
  all.push_back(blocks);
  Method clipped{"Clipped", base()};
  clipped.options.curvature.kl_clip = 1e-4;
  all.push_back(clipped);
  return all;
}

MakeOptimizer with_fraction(optim::KfacOptions options, double fraction) {
  options.curvature.distribution.grad_worker_fraction = fraction;
  return [options](auto comm) { return optim::make_kfac(comm, options); };
}

class EveryFraction : public ::testing::TestWithParam<Method> {};

TEST_P(EveryFraction, GivesTheWeightsOfOneRank) {
  const optim::KfacOptions options = GetParam().options;
  const std::vector<double> alone = train_ranks<double>(1, with_fraction(options, 1));
  EXPECT_EQ(alone, train_ranks<double>(1, with_fraction(options, 0)));
  for (const int ranks : {2, 3, 4, 6})
    for (int workers = 1; workers <= ranks; ++workers) {
      if (ranks % workers != 0) continue;
      const double fraction = static_cast<double>(workers) / ranks;
      EXPECT_TRUE(
          near(train_ranks<double>(ranks, with_fraction(options, fraction)), alone, kTolerance))
          << workers << " of " << ranks;
    }
}

TEST_P(EveryFraction, IsToldApartFromAnotherDamping) {
  // Negative control: the trainings above would notice inverses that are a little off.
  optim::KfacOptions other = GetParam().options;
  other.curvature.damping *= 1.001;
  EXPECT_FALSE(near(train_ranks<double>(1, with_fraction(other, 0)),
                    train_ranks<double>(1, with_fraction(GetParam().options, 0)), 1e-7));
}

INSTANTIATE_TEST_SUITE_P(Methods, EveryFraction, ::testing::ValuesIn(methods()),
                         [](const auto& test) { return test.param.name; });

TEST(WorkerFraction, ServesThePreconditioner) {
  kfac::CurvatureOptions options = base().curvature;
  options.refresh.inverse_interval = 2;
  const auto trained = [&](int ranks, double fraction) {
    options.distribution.grad_worker_fraction = fraction;
    std::vector<double> parameters;
    comm::run_ranks(ranks, [&, options = options](auto comm) {
      const auto net = train_preconditioned<double>(comm, options);
      if (comm->rank() == 0) parameters = net.parameters();
    });
    return parameters;
  };
  const std::vector<double> alone = trained(1, 0);
  for (const double fraction : {0.0, 0.5, 1.0})
    EXPECT_TRUE(near(trained(4, fraction), alone, kTolerance)) << fraction;
}

TEST(WorkerFraction, ServesSinglePrecision) {
  optim::KfacOptions options = base();
  options.curvature.dtype = DType::f32;
  const std::vector<double> alone = train_ranks<float>(1, with_fraction(options, 0), {.steps = 3});
  // As in the invariance tests: 100 * 384 * eps for sums of up to 384 terms over a few steps.
  for (const double fraction : {0.5, 1.0})
    EXPECT_TRUE(near(train_ranks<float>(4, with_fraction(options, fraction), {.steps = 3}), alone,
                     100 * 384 * eps<float>));
}

TEST(WorkerFraction, ThatDoesNotDivideTheRanksIsAnErrorOnAllOfThem) {
  comm::run_ranks(4, [](auto comm) {
    const auto optimizer = with_fraction(base(), 0.75)(comm);
    try {
      optimizer->prepare();
      ADD_FAILURE() << "no error";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("1/4, 1/2, 1"), std::string::npos) << error.what();
    }
  });
}

}  // namespace
}  // namespace dkfac::testing
