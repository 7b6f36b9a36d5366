#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "nn/cuda/device_models.h"

/// K-FAC by captured passes, statistics included, has the bits of passes as they are.
namespace dkfac::testing {
namespace {

/// A step of one rank.
struct StepOutcome {
  std::vector<double> sums, weights, buffers;
  bool updated = false;
  double flops = 0;
  std::int64_t underflow = 0, launches = 0;
  std::uint64_t bytes = 0;
};
struct Course {
  std::vector<StepOutcome> steps;
  LaunchCounts counts;
};
using Between = std::function<void(ModelTraining&, int)>;

/// Trains on every rank and returns the course of rank 0. between: called before each step.
Course course(Recipe recipe, bool record, int ranks = 1, const Between& between = {}) {
  recipe.capture = record;
  Course out;
  const auto train = [&](std::shared_ptr<comm::Communicator> comm) {
    ModelTraining training(recipe, Device::cuda(), comm);
    Course mine;
    for (int step = 0; step < recipe.steps; ++step) {
      training.load(step);
      if (between) between(training, step);
      const kfac::StepReport report = training.update(recipe.loss_scale(step));
      mine.steps.push_back({.sums = training.sums(),
                            .weights = training.weights(),
                            .buffers = training.buffers(),
                            .updated = report.updated,
                            .flops = report.flops,
                            .underflow = report.underflow,
                            .launches = training.launches(),
                            .bytes = report.bytes});
    }
    mine.counts = training.passes().counts();
    if (comm->rank() == 0) out = std::move(mine);
  };
  if (ranks == 1)
    train(comm::make_self());
  else
    comm::run_ranks(ranks, train);
  return out;
}

/// Bits, so that NaN equals itself.
bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](double x, double y) {
    return std::bit_cast<std::uint64_t>(x) == std::bit_cast<std::uint64_t>(y);
  });
}

void expect_same(const Course& a, const Course& b) {
  ASSERT_EQ(a.steps.size(), b.steps.size());
  for (std::size_t i = 0; i < a.steps.size(); ++i) {
    const StepOutcome &x = a.steps[i], &y = b.steps[i];
    EXPECT_TRUE(same_bits(x.sums, y.sums)) << "step " << i;
    EXPECT_TRUE(same_bits(x.weights, y.weights)) << "step " << i;
    EXPECT_TRUE(same_bits(x.buffers, y.buffers)) << "step " << i;
    EXPECT_EQ(x.updated, y.updated) << "step " << i;
    EXPECT_EQ(x.flops, y.flops) << "step " << i;
    EXPECT_EQ(x.underflow, y.underflow) << "step " << i;
    EXPECT_EQ(x.bytes, y.bytes) << "step " << i;
  }
}

Recipe small_kfac(DType compute = DType::f32) {
  nn::ModelOptions model = small_model("resnet20", DType::f32, compute);
  model.input = Shape{8, 8, 3};
  return {.model = model, .method = Method::kfac, .batch = 8, .steps = 6};
}

struct Variant {
  std::string name;
  std::function<void(Recipe&)> set;
  std::int64_t replayed = 5, captured = 1, refused = 0;
};
void set_curvature(Recipe& recipe, std::function<void(kfac::CurvatureOptions&)> change) {
  recipe.change = std::move(change);
}

std::vector<Variant> variants() {
  return {
      {"EveryStep", [](Recipe&) {}},
      {"EverySecondStep", [](Recipe& r) { r.statistics_every = 2; }, 4, 2},
      {"HalfTheSamples",
       [](Recipe& r) {
         set_curvature(r, [](kfac::CurvatureOptions& o) { o.statistics.fraction = 0.5; });
       }},
      {"Diagonal",
       [](Recipe& r) {
         set_curvature(r, [](kfac::CurvatureOptions& o) {
           o.statistics.norm_fisher = kfac::NormFisher::diagonal;
         });
       }},
      {"WholeNormFisher",
       [](Recipe& r) {
         set_curvature(r, [](kfac::CurvatureOptions& o) {
           o.statistics.norm_fisher = kfac::NormFisher::full;
         });
       }},
      {"MicroBatches", [](Recipe& r) { r.micro_batches = 2; }, 10, 2},
      {"Rows",
       [](Recipe& r) {
         r.max_samples = r.batch;
         r.micro_batches = 2;
         set_curvature(r, [](kfac::CurvatureOptions& o) { o.statistics.new_weight = 1; });
       },
       10, 2},
      {"Reduced",
       [](Recipe& r) {
         set_curvature(r, [](kfac::CurvatureOptions& o) {
           o.statistics.sharing = kfac::WeightSharing::reduce;
         });
       }},
      {"RoundedToBf16",
       [](Recipe& r) {
         set_curvature(r, [](kfac::CurvatureOptions& o) { o.statistics.operand = DType::bf16; });
       }},
      {"Delayed",
       [](Recipe& r) {
         r.inverses_every = 2;
         set_curvature(r, [](kfac::CurvatureOptions& o) { o.refresh.delay_inverses = true; });
       }},
      // The scales are due from the second step on.
      {"Ekfac",
       [](Recipe& r) {
         r.inverse = kfac::InverseMethod::ekfac;
         r.inverses_every = 2;
         set_curvature(r,
                       [](kfac::CurvatureOptions& o) { o.distribution.grad_worker_fraction = 1; });
       },
       4},
      {"EkfacOfMicroBatches",
       [](Recipe& r) {
         r.inverse = kfac::InverseMethod::ekfac;
         r.inverses_every = 2;
         set_curvature(r,
                       [](kfac::CurvatureOptions& o) { o.distribution.grad_worker_fraction = 1; });
         r.micro_batches = 2;
       },
       8, 2},
      {"ActivationsInF16", [](Recipe& r) { r.model.compute = DType::f16; }},
      {"WideWorkers",
       [](Recipe& r) {
         set_curvature(r,
                       [](kfac::CurvatureOptions& o) { o.distribution.grad_worker_fraction = 1; });
       }},
      {"RoundedOnTheWay",
       [](Recipe& r) {
         set_curvature(r, [](kfac::CurvatureOptions& o) {
           o.communication.statistics_wire = DType::f16;
           o.communication.bucket_bytes = 4096;
         });
       }},
  };
}

class GraphedStatistics : public ::testing::TestWithParam<Variant> {};

TEST_P(GraphedStatistics, GiveTheBitsOfPassesAsTheyAre) {
  Recipe recipe = small_kfac();
  GetParam().set(recipe);
  const Course plain = course(recipe, false), graphed = course(recipe, true);
  expect_same(graphed, plain);
  EXPECT_EQ(graphed.counts.replayed, GetParam().replayed) << graphed.counts.reason;
  EXPECT_EQ(graphed.counts.captured, GetParam().captured) << graphed.counts.reason;
  EXPECT_EQ(graphed.counts.refused, GetParam().refused) << graphed.counts.reason;
  EXPECT_EQ(plain.counts.replayed, 0);
}

/// Sums over ranks are sent between the parts of a recording, the first ones after its forward
/// pass.
TEST_P(GraphedStatistics, GiveTwoRanksTheBitsOfPassesAsTheyAre) {
  Recipe recipe = small_kfac();
  recipe.groups = 2;
  GetParam().set(recipe);
  const Course plain = course(recipe, false, 2);
  recipe.part_bytes = 4096;
  const Course graphed = course(recipe, true, 2);
  expect_same(graphed, plain);
  EXPECT_EQ(graphed.counts.replayed, GetParam().replayed) << graphed.counts.reason;
  EXPECT_EQ(graphed.counts.captured, GetParam().captured) << graphed.counts.reason;
  EXPECT_EQ(graphed.counts.refused, GetParam().refused) << graphed.counts.reason;
}

INSTANTIATE_TEST_SUITE_P(Kfac, GraphedStatistics, ::testing::ValuesIn(variants()),
                         [](const auto& variant) { return variant.param.name; });

/// Intervals and micro-batches that change between steps, back and forth.
TEST(GraphedPassesOfKfac, FollowWhatIsDue) {
  Recipe recipe = small_kfac();
  recipe.steps = 14;
  const auto between = [](ModelTraining& training, int step) {
    if (step == 3) training.set_curvature({.statistics_interval = 2, .inverse_interval = 4});
    if (step == 7) training.set_curvature({.damping = 0.5, .micro_batches = 2});
    if (step == 11)
      training.set_curvature({.statistics_interval = 1, .inverse_interval = 1, .micro_batches = 1});
  };
  const Course plain = course(recipe, false, 1, between),
               graphed = course(recipe, true, 1, between);
  expect_same(graphed, plain);
  EXPECT_GT(graphed.counts.replayed, 9) << graphed.counts.reason;
  EXPECT_EQ(graphed.counts.refused, 0) << graphed.counts.reason;
}

/// A statistic is due at its own interval: with every set of those that are due, another pass.
TEST(GraphedPassesOfKfac, FollowAdaptiveIntervals) {
  Recipe recipe = small_kfac();
  recipe.steps = 12;
  recipe.change = [](kfac::CurvatureOptions& o) {
    o.refresh.staleness = kfac::Staleness::adaptive;
    o.refresh.similarity = 0.5;
    o.refresh.max_interval = 2;
  };
  const Course plain = course(recipe, false), graphed = course(recipe, true);
  expect_same(graphed, plain);
  EXPECT_EQ(graphed.counts.refused, 0) << graphed.counts.reason;
}

/// Replayed steps that are rejected, with statistics and without: statistics remain due.
TEST(GraphedPassesOfKfac, ForgetRejectedSteps) {
  Recipe recipe = small_kfac();
  recipe.statistics_every = 2;
  recipe.steps = 9;
  const auto between = [](ModelTraining& training, int step) {
    if (step == 4 || step == 6)
      ops::fill(training.ctx(), training.images(), std::numeric_limits<double>::quiet_NaN());
  };
  for (const int ranks : {1, 2}) {
    recipe.groups = ranks;
    const Course plain = course(recipe, false, ranks, between),
                 graphed = course(recipe, true, ranks, between);
    expect_same(graphed, plain);
    EXPECT_FALSE(graphed.steps[4].updated);
    EXPECT_FALSE(graphed.steps[6].updated);
    EXPECT_TRUE(graphed.steps[8].updated);
    EXPECT_EQ(graphed.counts.replayed, 7) << graphed.counts.reason;
  }
}

/// The scale of an f16 operand is a number of the host, from the last statistic: where it changes,
/// another pass.
TEST(GraphedPassesOfKfac, FollowTheRangesOfOperands) {
  Recipe recipe = small_kfac();
  recipe.steps = 10;
  recipe.lr = 1e-6;  // Ranges stay between two powers of two, as the batch stays the same.
  recipe.change = [](kfac::CurvatureOptions& o) { o.statistics.operand = DType::f16; };
  const auto between = [](ModelTraining& training, int step) {
    training.load(0);
    // With the scale of the steps before, these are out of the range of f16.
    if (step >= 4) ops::axpby(training.ctx(), 0, training.images(), 0x1p20, training.images());
  };
  const Course plain = course(recipe, false, 1, between),
               graphed = course(recipe, true, 1, between);
  expect_same(graphed, plain);
  EXPECT_GE(graphed.counts.captured, 2);
  EXPECT_GE(graphed.counts.replayed, 4);
  EXPECT_EQ(graphed.counts.refused, 0) << graphed.counts.reason;
}

/// Activations that are in f16 already are not multiplied by a scale.
TEST(GraphedPassesOfKfac, DoNotDependOnTheRangesOfOperandsInTheirOwnType) {
  Recipe recipe = small_kfac();
  recipe.steps = 8;
  recipe.lr = 1e-6;
  recipe.model.compute = DType::f16;
  recipe.change = [](kfac::CurvatureOptions& o) { o.statistics.operand = DType::f16; };
  const auto between = [](ModelTraining& training, int step) {
    training.load(0);
    ops::axpby(training.ctx(), 0, training.images(), step < 4 ? 1 : 4, training.images());
  };
  const Course graphed = course(recipe, true, 1, between);
  expect_same(graphed, course(recipe, false, 1, between));
  EXPECT_EQ(graphed.counts.captured, 1);
  EXPECT_GE(graphed.counts.replayed, 5);
}

/// The range of a first step that is rejected is unknown in the second one, for which the host
/// waits. That cannot be captured, and what the attempt has counted is forgotten.
TEST(GraphedPassesOfKfac, RunAsTheyAreWhereTheHostHasToWait) {
  Recipe recipe = small_kfac();
  recipe.steps = 5;
  recipe.change = [](kfac::CurvatureOptions& o) { o.statistics.operand = DType::f16; };
  const auto between = [](ModelTraining& training, int step) {
    if (step == 0)
      ops::fill(training.ctx(), training.images(), std::numeric_limits<double>::quiet_NaN());
  };
  const Course plain = course(recipe, false, 1, between),
               graphed = course(recipe, true, 1, between);
  expect_same(graphed, plain);
  EXPECT_FALSE(graphed.steps[0].updated);
  EXPECT_TRUE(graphed.steps[1].updated);
  EXPECT_EQ(graphed.counts.refused, 1);
  EXPECT_TRUE(contains(graphed.counts.reason, "cuda")) << graphed.counts.reason;
}

/// Statistics on a stream for which the caller's does not wait.
TEST(GraphedPassesOfKfac, HaveNoStateWhereRecordsAreReadLater) {
  Recipe recipe = small_kfac();
  EXPECT_TRUE(ModelTraining(recipe, Device::cuda()).optimizer().pass_state({}));
  recipe.change = [](kfac::CurvatureOptions& o) { o.statistics.records_valid_until_step = true; };
  EXPECT_FALSE(ModelTraining(recipe, Device::cuda()).optimizer().pass_state({}));
}

/// Outside of the graph a pass with statistics launches what one without them does: what checks and
/// packs gradients.
TEST(GraphedPassesOfKfac, LaunchStatisticsWithinTheGraph) {
  if (!is_emulated()) GTEST_SKIP() << "launches are counted on the emulated device";
  Recipe recipe = small_kfac();
  recipe.statistics_every = 2;
  const Course plain = course(recipe, false), graphed = course(recipe, true);
  RecordProperty("one_by_one", std::to_string(plain.steps[4].launches));
  RecordProperty("beside_the_graph", std::to_string(graphed.steps[4].launches));
  EXPECT_EQ(graphed.steps[4].launches, graphed.steps[5].launches);
  EXPECT_LE(graphed.steps[4].launches, 2);
  EXPECT_GT(plain.steps[4].launches, plain.steps[5].launches + 90) << "control";
}

}  // namespace
}  // namespace dkfac::testing
