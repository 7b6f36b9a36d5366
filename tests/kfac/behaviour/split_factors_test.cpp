#include <algorithm>
#include <tuple>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"
#include "dkfac/kfac/assignment.h"

#include "kfac/split_layers.h"
#include "support/short_runs.h"
#include "support/tcp_ranks.h"

// split_factors changes which ranks average and invert the factors, and what is sent, and nothing
// else: every training below has the bits of the same one with layers kept whole.
namespace dkfac::testing {
namespace {

using kfac::CurvatureOptions;

struct SplitMethod {
  std::string name;
  CurvatureOptions options;
};

std::vector<SplitMethod> split_methods() {
  std::vector<SplitMethod> all;
  const auto add = [&all](const char* name, auto&& change) {
    all.push_back({name, split_options(false)});
    change(all.back().options);
  };
  add("EveryStep", [](CurvatureOptions& o) { o.refresh.inverse_interval = 1; });
  add("Damping", [](CurvatureOptions& o) { o.damping = 1e-2; });
  add("Stale", [](CurvatureOptions& o) {
    o.refresh.early_refreshes = false;
    o.refresh.statistics_interval = 2;
    o.refresh.inverse_interval = 3;
  });
  add("Adaptive", [](CurvatureOptions& o) {
    o.refresh.staleness = kfac::Staleness::adaptive;
    o.refresh.similarity = 0.9;
  });
  add("Delayed", [](CurvatureOptions& o) {
    o.refresh.delay_inverses = true;
    o.refresh.inverse_interval = 2;
  });
  add("Eigen", [](CurvatureOptions& o) { o.inverse.method = kfac::InverseMethod::eigen; });
  add("Blocks", [](CurvatureOptions& o) { o.inverse.block_width = 48; });
  add("F32", [](CurvatureOptions& o) { o.dtype = DType::f32; });
  return all;
}

CurvatureOptions divided(CurvatureOptions options) {
  options.distribution.split_factors = true;
  return options;
}

class EverySplit : public ::testing::TestWithParam<SplitMethod> {};

TEST_P(EverySplit, GivesTheBitsOfWholeLayers) {
  const CurvatureOptions& whole = GetParam().options;
  for (const int ranks : short_or_full<std::vector<int>>({4}, {1, 2, 3, 4})) {
    const std::vector<SplitRun> together = run_split_over_threads(ranks, whole),
                                apart = run_split_over_threads(ranks, divided(whole));
    EXPECT_FALSE(is_divided(together[0]));
    EXPECT_EQ(is_divided(apart[0]), ranks > 1) << apart[0].description;
    for (const SplitRun& run : apart) EXPECT_EQ(run.weights, together[0].weights) << ranks;
  }
}

TEST_P(EverySplit, IsToldApartFromAnotherSplitOfTheDamping) {
  // Negative control: the trainings above would notice a trace that has not come.
  CurvatureOptions other = GetParam().options;
  if (other.inverse.method == kfac::InverseMethod::eigen)
    other.relative_damping *= 1 + 1e-6;
  else
    other.damping_split = kfac::DampingSplit::equal_traces;
  EXPECT_NE(run_split_over_threads(2, other)[0].weights,
            run_split_over_threads(2, divided(GetParam().options))[0].weights);
}

INSTANTIATE_TEST_SUITE_P(Methods, EverySplit, ::testing::ValuesIn(split_methods()),
                         [](const auto& test) { return test.param.name; });

TEST(SplitFactors, GivesTheBitsOfWholeLayersAtEveryFraction) {
  for (const auto& [ranks, workers] : {std::pair(2, 2), {4, 2}, {4, 4}}) {
    CurvatureOptions whole = split_options(false);
    whole.distribution.grad_worker_fraction = static_cast<double>(workers) / ranks;
    const std::vector<SplitRun> together = run_split_over_threads(ranks, whole),
                                apart = run_split_over_threads(ranks, divided(whole));
    EXPECT_TRUE(is_divided(apart[0])) << apart[0].description;
    for (const SplitRun& run : apart)
      EXPECT_EQ(run.weights, together[0].weights) << workers << " of " << ranks;
  }
}

TEST(SplitFactors, GivesTheBitsOfWholeLayersOverTcp) {
  const std::vector<double> whole = run_split_over_threads(3, split_options(false))[0].weights;
  comm::testing::run_tcp(3, {}, [&](const std::shared_ptr<comm::Communicator>& comm) {
    const SplitRun run = run_split(comm, split_options(true));
    EXPECT_TRUE(is_divided(run)) << run.description;
    EXPECT_EQ(run.weights, whole);
  });
}

TEST(SplitFactors, KeepsFactorsTogetherForEkfac) {
  CurvatureOptions options = split_options(true);
  options.inverse.method = kfac::InverseMethod::ekfac;
  options.refresh.statistics_interval = 1;
  options.refresh.inverse_interval = 3;
  options.distribution.grad_worker_fraction = 1;
  const std::vector<SplitRun> runs = run_split_over_threads(2, options);
  EXPECT_FALSE(is_divided(runs[0])) << runs[0].description;
}

/// Equal columns of every sample from step `bad` on, which a damping of 1e-60 does not repair.
SplitCourse failing_from(int bad, int to) {
  return {.to = to, .inputs = [bad](int step, int layer, std::vector<double>& x) {
            if (layer == 0 && step >= bad) std::ranges::fill(x, 1.0);
          }};
}

CurvatureOptions hopeless_split(bool split) {
  CurvatureOptions options = split_options(split);
  options.damping = 1e-60;
  options.statistics.new_weight = 1;
  options.statistics.low_rank = false;
  options.inverse.max_failed_refreshes = 3;
  return options;
}

TEST(SplitFactors, ReportsAndSurvivesTheSameFailedInverses) {
  for (const int ranks : {2, 3}) {
    const std::vector<SplitRun> whole = run_split_over_threads(ranks, hopeless_split(false),
                                                               failing_from(0, 3)),
                                apart = run_split_over_threads(ranks, hopeless_split(true),
                                                               failing_from(0, 3));
    EXPECT_TRUE(is_divided(apart[0])) << apart[0].description;
    EXPECT_EQ(outcomes(apart), outcomes(whole));
    EXPECT_FALSE(whole[0].reports.back().without_inverse.empty());
    for (const SplitRun& run : apart) {
      EXPECT_EQ(run.weights, whole[0].weights);
      for (std::size_t step = 0; step < run.reports.size(); ++step)
        EXPECT_EQ(run.reports[step].without_inverse, whole[0].reports[step].without_inverse);
    }
  }
}

std::vector<SavedState> states_of(const std::vector<SplitRun>& runs) {
  std::vector<SavedState> all;
  for (const SplitRun& run : runs) all.push_back(run.state);
  return all;
}

TEST(SplitFactors, ContinueFromAStateOfAnyPlan) {
  CurvatureOptions whole = split_options(false);
  whole.refresh.early_refreshes = false;
  whole.refresh.statistics_interval = 1;
  whole.refresh.inverse_interval = 2;
  const CurvatureOptions apart = divided(whole);
  const std::vector<SplitRun> uninterrupted = run_split_over_threads(4, apart);
  for (const CurvatureOptions& before : {whole, apart}) {
    const std::vector<SplitRun> half = run_split_over_threads(4, before, {.to = 3});
    const std::vector<SavedState> saved = states_of(half);
    const SplitCourse rest{.from = 3, .before = &saved, .weights = half[0].weights};
    EXPECT_EQ(run_split_over_threads(4, apart, rest)[0].weights, uninterrupted[0].weights);
    for (const int ranks : {1, 2, 3})
      EXPECT_EQ(run_split_over_threads(ranks, apart, rest)[0].weights,
                run_split_over_threads(ranks, whole, rest)[0].weights)
          << ranks;
  }
}

TEST(SplitFactors, SaveEachAverageOnceAndEachInverseWhereItIsApplied) {
  const std::vector<SplitRun> runs = run_split_over_threads(3, split_options(true));
  for (const char* name : {"fc0.a", "fc0.g", "fc1.a", "fc1.g"}) {
    int averages = 0, owned = 0, copies = 0;
    for (const SplitRun& run : runs) {
      averages += static_cast<int>(run.state.contains(std::string(name) + "_average"));
      const auto inverse = run.state.find(std::string(name) + "_inverse");
      if (inverse == run.state.end()) continue;
      ++(inverse->second.kind == StateKind::owned ? owned : copies);
    }
    EXPECT_EQ(averages, 1) << name;
    EXPECT_EQ(owned, 1) << name;
    EXPECT_LE(copies, 1) << name;
  }
}

/// What split_factors adds to the bytes of a step of a rank that rebuilds: docs/distribution.md,
/// "Bytes". Each triangle has a damping, its form, and whether it is valid.
std::uint64_t added_bytes(int ranks, int workers, int rank) {
  std::vector<kfac::FactorLoads> loads;
  for (const LinearSpec& spec : kSplitLayers) loads.push_back(kfac::factor_loads(spec, DType::f64));
  const auto owners = kfac::assign_factors(loads, ranks);
  const int columns = ranks / workers;
  std::int64_t traces = 0, sent = 0, received = 0;
  for (std::size_t i = 0; i < owners.size(); ++i) {
    const LinearSpec& spec = kSplitLayers[i];
    if (owners[i].a != owners[i].g && (owners[i].a == rank || owners[i].g == rank)) ++traces;
    for (const auto& [from, width] :
         {std::pair(owners[i].a, spec.in + 1), {owners[i].g, spec.out}}) {
      if (from % columns == owners[i].layer % columns) continue;
      if (from == rank) sent += ops::packed_size(width) + 3;
      if (owners[i].layer == rank) received += ops::packed_size(width) + 3;
    }
  }
  return static_cast<std::uint64_t>(8 * (traces + std::max(sent, received)));
}

TEST(SplitFactors, AddTracesAndInversesToTheBytesOfAStepThatRebuilds) {
  for (const auto& [ranks, workers] : {std::pair(1, 1), {2, 1}, {3, 1}, {4, 1}, {2, 2}, {4, 4}}) {
    CurvatureOptions whole = split_options(false);
    whole.distribution.grad_worker_fraction = static_cast<double>(workers) / ranks;
    whole.refresh.early_refreshes = false;
    whole.refresh.statistics_interval = 1;
    whole.refresh.inverse_interval = 2;
    const std::vector<SplitRun> together = run_split_over_threads(ranks, whole),
                                apart = run_split_over_threads(ranks, divided(whole));
    for (int rank = 0; rank < ranks; ++rank)
      for (std::size_t step = 0; step < together[0].reports.size(); ++step) {
        const auto at = static_cast<std::size_t>(rank);
        const bool rebuilt = together[at].reports[step].inverses_refreshed;
        EXPECT_EQ(rebuilt, step % 2 == 0);
        EXPECT_EQ(apart[at].reports[step].bytes - together[at].reports[step].bytes,
                  rebuilt ? added_bytes(ranks, workers, rank) : 0)
            << "rank " << rank << " of " << ranks << ", " << workers << " workers, step " << step;
      }
  }
}

}  // namespace
}  // namespace dkfac::testing
