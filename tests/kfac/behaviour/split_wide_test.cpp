#include <algorithm>
#include <limits>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"

#include "kfac/inverse/split_columns.h"
#include "kfac/split_layers.h"
#include "support/near.h"
#include "support/tcp_ranks.h"

// split_wide lets several ranks invert a factor: every training below is, within rounding, the same
// one with each factor inverted by one rank.
namespace dkfac::testing {
namespace {

using kfac::CurvatureOptions;

/// A of the first layer is wide enough for two ranks, and for four, also with the messages of f64.
const std::vector<LinearSpec> kTwoRanks{{.in = 640, .out = 64}, {.in = 20, .out = 30}},
    kFourRanks{{.in = 960, .out = 64}, {.in = 20, .out = 30}};
/// One factor for four ranks and one for two.
const std::vector<LinearSpec> kMixed{{.in = 960, .out = 8}, {.in = 899, .out = 8}};

CurvatureOptions wide(CurvatureOptions options) {
  options.distribution.split_wide = true;
  return options;
}

/// Inverses that are explicit, as for 100 steps, and renewed in each of the first three.
CurvatureOptions explicit_inverses() {
  CurvatureOptions options = split_options(false);
  options.refresh.early_refreshes = true;
  options.refresh.inverse_interval = 100;
  return options;
}

SplitCourse course_of(std::vector<LinearSpec> layers, int to = 3) {
  return {.to = to, .layers = std::move(layers)};
}

bool is_shared(const SplitRun& run, const char* ranks = "ranks 0 to ") {
  return run.description.find(ranks) != std::string::npos;
}

/// c * d * eps, with the c of the inversions (4), steps, and a condition of 1e3 at most.
constexpr double kRounding = 4.0 * 961 * 3 * 1e3 * eps<double>;

struct WideMethod {
  std::string name;
  CurvatureOptions options;
};

std::vector<WideMethod> wide_methods() {
  std::vector<WideMethod> all{{"Explicit", explicit_inverses()}};
  const auto add = [&all](const char* name, auto&& change) {
    all.push_back({name, split_options(false)});
    change(all.back().options);
  };
  add("Cholesky", [](CurvatureOptions&) {});
  add("Damping", [](CurvatureOptions& o) { o.damping = 1e-1; });
  add("Stale", [](CurvatureOptions& o) {
    o.refresh.statistics_interval = 2;
    o.refresh.inverse_interval = 2;
  });
  add("Staggered", [](CurvatureOptions& o) {
    o.refresh.inverse_interval = 2;
    o.refresh.stagger_inverses = true;
  });
  add("Delayed", [](CurvatureOptions& o) {
    o.refresh.delay_inverses = true;
    o.refresh.inverse_interval = 2;
  });
  add("Factors", [](CurvatureOptions& o) { o.distribution.split_factors = true; });
  add("AllWorkers", [](CurvatureOptions& o) { o.distribution.grad_worker_fraction = 1; });
  return all;
}

class EveryWide : public ::testing::TestWithParam<WideMethod> {};

TEST_P(EveryWide, IsThatOfOneRankWithinRounding) {
  const CurvatureOptions& alone = GetParam().options;
  for (const int ranks : GetParam().name == "Cholesky" ? std::vector{2, 3, 4} : std::vector{2}) {
    const SplitCourse course = course_of(ranks == 2 ? kTwoRanks : kFourRanks);
    const std::vector<SplitRun> one = run_split_over_threads(ranks, alone, course),
                                several = run_split_over_threads(ranks, wide(alone), course);
    EXPECT_FALSE(is_shared(one[0]));
    EXPECT_TRUE(is_shared(several[0])) << several[0].description;
    for (const SplitRun& run : several) {
      EXPECT_EQ(run.weights, several[0].weights);
      EXPECT_TRUE(near(run.weights, one[0].weights, kRounding)) << ranks;
    }
    EXPECT_NE(several[0].weights, one[0].weights) << "nothing was inverted by several ranks";
    EXPECT_EQ(outcomes(several), outcomes(one));
  }
}

TEST_P(EveryWide, IsToldApartFromAnotherDamping) {
  CurvatureOptions other = GetParam().options;
  (other.damping > 0 ? other.damping : other.relative_damping) *= 1 + 1e-5;
  EXPECT_FALSE(
      near(run_split_over_threads(2, other, course_of(kTwoRanks))[0].weights,
           run_split_over_threads(2, wide(GetParam().options), course_of(kTwoRanks))[0].weights,
           kRounding));
}

INSTANTIATE_TEST_SUITE_P(Methods, EveryWide, ::testing::ValuesIn(wide_methods()),
                         [](const auto& test) { return test.param.name; });

TEST(SplitWide, GroupsOfSeveralSizesDoNotWaitForEachOther) {
  const SplitCourse course = course_of(kMixed, 2);
  const std::vector<SplitRun> one = run_split_over_threads(4, split_options(false), course),
                              several =
                                  run_split_over_threads(4, wide(split_options(false)), course);
  EXPECT_TRUE(is_shared(several[0], "ranks 0 to 3")) << several[0].description;
  EXPECT_TRUE(near(several[0].weights, one[0].weights, kRounding));
}

TEST(SplitWide, HasOneSetOfBitsOnEveryBackend) {
  const SplitCourse course = course_of(kFourRanks, 2);
  const std::vector<double> threads =
      run_split_over_threads(3, wide(split_options(false)), course)[0].weights;
  comm::testing::run_tcp(3, {}, [&](const std::shared_ptr<comm::Communicator>& comm) {
    EXPECT_EQ(run_split(comm, wide(split_options(false)), course).weights, threads);
  });
}

TEST(SplitWide, LeavesAFactorThatFailsToItsRankAlone) {
  // Equal columns of every sample: in f32 the damping is lost beside them, and the matrix singular.
  CurvatureOptions options = split_options(false);
  options.dtype = DType::f32;
  options.damping = 1e-18;
  options.inverse.max_failed_refreshes = 3;
  SplitCourse course = course_of(kTwoRanks, 1);
  course.inputs = [](int, int layer, std::vector<double>& x) {
    if (layer == 0) std::ranges::fill(x, 1.0);
  };
  const std::vector<SplitRun> one = run_split_over_threads(2, options, course),
                              several = run_split_over_threads(2, wide(options), course);
  EXPECT_TRUE(is_shared(several[0])) << several[0].description;
  const std::vector<int> stages = outcomes(one);
  EXPECT_LT(stages[0], 4) << "every factor is inverted as requested";
  EXPECT_EQ(outcomes(several), stages);
  EXPECT_EQ(several[0].weights, one[0].weights);  // What is done is what one rank does.
}

TEST(SplitWide, RejectsAStepWithANaNOfOneRankOnAll) {
  SplitCourse course = course_of(kTwoRanks, 4);
  course.inputs = [](int step, int layer, std::vector<double>& x) {
    if (step == 2 && layer == 0) x[3] = std::numeric_limits<double>::quiet_NaN();
  };
  std::vector<SplitRun> runs[2];
  for (const bool several : {false, true}) {
    CurvatureOptions options = split_options(false);
    options.distribution.split_wide = several;
    runs[several].resize(2);
    comm::run_ranks(2, [&](auto comm) {
      SplitCourse here = course;
      if (comm->rank() == 0) here.inputs = {};
      runs[several][static_cast<std::size_t>(comm->rank())] = run_split(comm, options, here);
    });
  }
  for (const SplitRun& run : runs[1]) {
    EXPECT_FALSE(run.reports[2].updated);
    EXPECT_TRUE(run.reports[3].updated);
    EXPECT_EQ(run.weights, runs[1][0].weights);
    EXPECT_TRUE(near(run.weights, runs[0][0].weights, kRounding));
  }
}

TEST(SplitWide, ContinuesFromAStateOfEitherPlan) {
  const SplitCourse all = course_of(kTwoRanks, 4);
  const CurvatureOptions one = split_options(false), several = wide(one);
  const std::vector<double> uninterrupted = run_split_over_threads(2, several, all)[0].weights;
  for (const CurvatureOptions& before : {several, one}) {
    const std::vector<SplitRun> half = run_split_over_threads(2, before, course_of(kTwoRanks, 2));
    std::vector<SavedState> saved;
    for (const SplitRun& run : half) saved.push_back(run.state);
    SplitCourse rest = all;
    rest.from = 2;
    rest.before = &saved;
    rest.weights = half[0].weights;
    const std::vector<double> weights = run_split_over_threads(2, several, rest)[0].weights;
    if (before.distribution.split_wide)
      EXPECT_EQ(weights, uninterrupted);
    else
      EXPECT_TRUE(near(weights, uninterrupted, 2 * kRounding));
  }
}

/// What split_wide adds to the bytes of a step of a rank that rebuilds A of 641:
/// docs/distribution.md, "Bytes"; rank 0 averages it.
std::uint64_t added_bytes(int rank, bool factored) {
  std::int64_t all = 0, own = 0;
  kfac::for_columns(641, 2, [&](const kfac::ColumnBlock& b) {
    all += b.numel();
    own += b.rank == rank ? b.numel() : 0;
  });
  const std::int64_t exchanged = rank == 0 ? all - own : own;
  return static_cast<std::uint64_t>(8 * (all + (factored ? 1 : 2) * exchanged));
}

TEST(SplitWide, AddsColumnsToTheBytesOfAStepThatRebuilds) {
  for (const bool factored : {false, true}) {
    const CurvatureOptions options = factored ? split_options(false) : explicit_inverses();
    const std::vector<SplitRun> one = run_split_over_threads(2, options, course_of(kTwoRanks, 2)),
                                several = run_split_over_threads(2, wide(options),
                                                                 course_of(kTwoRanks, 2));
    for (std::size_t rank = 0; rank < 2; ++rank)
      for (std::size_t step = 0; step < 2; ++step)
        EXPECT_EQ(several[rank].reports[step].bytes - one[rank].reports[step].bytes,
                  added_bytes(static_cast<int>(rank), factored))
            << "rank " << rank << ", step " << step;
  }
}

TEST(SplitWide, SaysSoWhereNoFactorIsWideEnough) {
  const SplitRun run = run_split_over_threads(2, wide(split_options(false)), {.to = 0})[0];
  EXPECT_NE(run.description.find("each of 0 factors (split_wide): none is wide enough"),
            std::string::npos)
      << run.description;
}

}  // namespace
}  // namespace dkfac::testing
