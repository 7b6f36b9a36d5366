#include <tuple>

#include <gtest/gtest.h>

#include "dkfac/core/random.h"

#include "support/natural_gradient.h"
#include "support/near.h"
#include "support/plain_training.h"

// grad_worker_fraction changes which ranks compute and what is sent, and nothing else. Every
// training below also compares the bits of all ranks after each step.
namespace dkfac::testing {
namespace {

// As for the number of ranks: differences of 12 steps stay far below.
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
  for (const int ranks : short_or_full<std::vector<int>>({4}, {2, 4, 6}))
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

struct Given {
  std::vector<double> wide = std::vector<double>(12, 0.5), narrow = std::vector<double>(6, 0.5);
};

/// Two steps of a layer of 4 x 3, which may keep its direction, and one of 3 x 2; `given` becomes
/// the second step's gradients. `left_out`: whether ranks that may leave out a gradient do so.
kfac::StepReport two_steps(kfac::Preconditioner& object, bool keep, bool left_out, int columns,
                           int rank, Given& given) {
  const LayerId wide = object.add_layer("wide", LinearSpec{.in = 3, .out = 4, .bias = false});
  const LayerId narrow = object.add_layer("narrow", LinearSpec{.in = 2, .out = 3, .bias = false});
  if (keep) object.keep_direction(wide);
  object.prepare();
  const bool works = object.read_factors(wide).owner % columns == rank % columns;
  kfac::StepReport report;
  for (int step = 0; step < 2; ++step) {
    given = {};
    Random random(static_cast<std::uint64_t>(7 * rank + step));
    const auto draw = [&](Shape shape) {
      std::vector<double> drawn(static_cast<std::size_t>(shape[0] * shape[1]));
      for (double& x : drawn) x = random.normal();
      return drawn;
    };
    for (const auto& [id, in, out] : {std::tuple(wide, 3, 4), {narrow, 2, 3}}) {
      const std::vector<double> x = draw({5, in}), dy = draw({5, out});
      object.record_input(id, view_of(x.data(), {5, in}));
      object.record_grad_output(id, view_of(dy.data(), {5, out}));
    }
    std::vector<kfac::LayerGrad> grads{{narrow, view_of(given.narrow.data(), {3, 2}), {}}};
    if (works || !left_out) grads.push_back({wide, view_of(given.wide.data(), {4, 3}), {}});
    report = object.step(grads);
    EXPECT_TRUE(report.updated);
  }
  return report;
}

TEST(WorkerFraction, LeavesADirectionThatIsKeptToTheWorkers) {
  for (const auto& [ranks, workers] : {std::pair(1, 1), {2, 1}, {4, 1}, {4, 2}, {4, 4}})
    comm::run_ranks(ranks, [&, ranks = ranks, workers = workers](auto comm) {
      kfac::CurvatureOptions options = base().curvature;
      options.distribution.grad_worker_fraction = static_cast<double>(workers) / ranks;
      const int columns = ranks / workers;
      Given gathered, kept, alone;
      kfac::Preconditioner usual(comm, options), keeps(comm, options), leaves(comm, options);
      const auto all = two_steps(usual, false, false, columns, comm->rank(), gathered);
      const auto less = two_steps(keeps, true, false, columns, comm->rank(), kept);
      (void)two_steps(leaves, true, true, columns, comm->rank(), alone);
      const bool works = usual.read_factors(LayerId{0}).owner % columns == comm->rank() % columns;
      EXPECT_EQ(kept.wide, works ? gathered.wide : Given().wide);
      EXPECT_EQ(alone.wide, kept.wide);
      EXPECT_EQ(kept.narrow, gathered.narrow);
      EXPECT_EQ(alone.narrow, gathered.narrow);
      EXPECT_NE(gathered.wide, Given().wide);
      const std::uint64_t saved = columns > 1 ? 12 * sizeof(double) : 0;
      EXPECT_EQ(all.bytes - less.bytes, saved);
      const bool has = columns > 1;  // Bytes of 6 elements, and of 18.
      EXPECT_EQ(keeps.describe().find("48 B") != std::string::npos, has) << keeps.describe();
      EXPECT_EQ(usual.describe().find("144 B") != std::string::npos, has) << usual.describe();
    });
}

TEST(WorkerFraction, AsksForGradientsOfWorkersAndForEqualChoices) {
  comm::run_ranks(2, [](auto comm) {
    kfac::Preconditioner object(comm, base().curvature), other(comm, base().curvature);
    const LayerId layer = object.add_layer("fc", LinearSpec{.in = 3, .out = 4});
    const auto refuse = [](const auto& call, const char* text) {
      try {
        call();
        ADD_FAILURE() << "no error: " << text;
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
      }
    };
    refuse([&] { object.keep_direction(LayerId{1}); }, "layer id 1 does not exist");
    object.keep_direction(layer);
    object.prepare();
    refuse([&] { object.keep_direction(layer); }, "layer 'fc' comes after prepare()");
    if (object.read_factors(layer).owner == comm->rank())
      refuse([&] { (void)object.step({}); }, "layer 'fc' has no gradient");
    const LayerId same = other.add_layer("fc", LinearSpec{.in = 3, .out = 4});
    if (comm->rank() == 0) other.keep_direction(same);
    refuse([&] { other.prepare(); }, "keeps its direction");
  });
}

}  // namespace
}  // namespace dkfac::testing
