#include <cmath>
#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/random.h"
#include "dkfac/kfac/preconditioner.h"

#include "comm/collective/flag_message.h"
#include "support/natural_gradient.h"
#include "support/near.h"

// Local statistics are those of a run of the owner alone, and nothing of them is sent.
namespace dkfac::testing::local_statistics {
namespace {

using kfac::CurvatureOptions;

constexpr std::int64_t kSamples = 4;
constexpr LinearSpec kLayers[] = {{.in = 6, .out = 5}, {.in = 5, .out = 3}, {.in = 4, .out = 4}};
constexpr NormSpec kNorm{.channels = 3};

CurvatureOptions local(CurvatureOptions options) {
  options.distribution.local_statistics = true;
  return options;
}

CurvatureOptions options_of(LossReduction reduction = LossReduction::local_mean) {
  CurvatureOptions options = natural_gradient();
  options.dtype = DType::f64;
  options.statistics.new_weight = 0.3;
  options.loss_reduction = reduction;
  return options;
}

/// What a rank has after some steps.
struct LocalRun {
  std::vector<std::vector<double>> averages;  ///< Of A and G of each layer, and of the norm.
  std::vector<int> owners;                    ///< Of these.
  std::vector<double> directions;
  std::vector<kfac::StepReport> reports;
};

struct LocalCourse {
  int data_of = -1;        ///< The rank that has the samples that all get; -1: each its own.
  double loss_factor = 1;  ///< Of output gradients.
  bool only_wanted = true;
  std::int64_t samples = kSamples;  ///< Of the last rank.
  std::int64_t max_rows = 0;
};

std::vector<double> values_of(const Tensor& x) {
  if (!x.is_set()) return {};
  return {x.data<double>(), x.data<double>() + x.numel()};
}

LocalRun run(const std::shared_ptr<comm::Communicator>& comm, const CurvatureOptions& options,
             const LocalCourse& course = {}) {
  kfac::Preconditioner preconditioner(comm, options);
  std::vector<LayerId> ids;
  for (LinearSpec spec : kLayers) {
    spec.max_rows = course.max_rows;
    ids.push_back(preconditioner.add_layer("fc" + std::to_string(ids.size()), spec));
  }
  ids.push_back(preconditioner.add_layer("norm", kNorm));
  preconditioner.prepare();
  const int rank = comm->rank(), from = course.data_of < 0 ? rank : course.data_of;
  const std::int64_t n = rank + 1 == comm->size() ? course.samples : kSamples;
  LocalRun out;
  for (int step = 0; step < 3; ++step) {
    Random random(static_cast<std::uint64_t>(100 * step + from));
    const auto normal = [&](std::int64_t numel, double factor) {
      std::vector<double> x(static_cast<std::size_t>(numel));
      for (double& value : x) value = factor * random.normal();
      return x;
    };
    const RecordScale scale{.global_batch = n == kSamples ? 0 : kSamples + n};
    std::vector<std::vector<double>> gradients;
    std::vector<kfac::LayerGrad> grads;
    for (std::size_t i = 0; i < std::size(kLayers); ++i) {
      const LinearSpec& spec = kLayers[i];
      const std::vector<double> x = normal(n * spec.in, 1),
                                dy = normal(n * spec.out, course.loss_factor);
      const bool all = !course.only_wanted;
      if (all || preconditioner.wants_input(ids[i]))
        preconditioner.record_input(ids[i], view_of(x.data(), {n, spec.in}), Stream::cpu(), scale);
      if (all || preconditioner.wants_grad_output(ids[i]))
        preconditioner.record_grad_output(ids[i], view_of(dy.data(), {n, spec.out}), Stream::cpu(),
                                          scale);
    }
    const std::vector<double> of_samples = normal(n * 2 * kNorm.channels, course.loss_factor);
    if (!course.only_wanted || preconditioner.wants_grad_output(ids.back()))
      preconditioner.record_sample_gradients(
          ids.back(), view_of(of_samples.data(), {n, 2, kNorm.channels}), Stream::cpu(), scale);
    for (const LinearSpec& spec : kLayers)
      gradients.push_back(std::vector<double>(static_cast<std::size_t>(spec.out * (spec.in + 1))));
    gradients.push_back(std::vector<double>(static_cast<std::size_t>(2 * kNorm.channels)));
    double value = 0;
    for (auto& g : gradients)
      for (double& x : g) x = std::sin(++value);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const bool norm = i == std::size(kLayers);
      const std::int64_t rows = norm ? kNorm.channels : kLayers[i].out,
                         columns = norm ? 1 : kLayers[i].in;
      const Shape shape = norm ? Shape{rows} : Shape{rows, columns};
      grads.push_back({ids[i], view_of(gradients[i].data(), shape),
                       view_of(gradients[i].data() + rows * columns, {rows})});
    }
    out.reports.push_back(preconditioner.step(grads));
    out.directions.clear();
    for (const auto& g : gradients) out.directions.insert(out.directions.end(), g.begin(), g.end());
  }
  for (const LayerId id : ids) {
    const kfac::LayerFactors factors = preconditioner.read_factors(id);
    for (const Tensor* x : {&factors.a.average, &factors.g.average, &factors.norm}) {
      out.averages.push_back(values_of(*x));
      out.owners.push_back(factors.owner);
    }
  }
  return out;
}

std::vector<LocalRun> run_all(int ranks, const CurvatureOptions& options,
                              const LocalCourse& course = {}) {
  std::vector<LocalRun> runs(static_cast<std::size_t>(ranks));
  comm::run_ranks(ranks, [&](auto comm) {
    runs[static_cast<std::size_t>(comm->rank())] = run(comm, options, course);
  });
  return runs;
}

/// By which gradients of the same losses differ between a run on so many ranks and one alone.
double loss_factor(LossReduction reduction, int ranks) {
  return reduction == LossReduction::global_mean ? ranks : 1;
}

// Means of kSamples products, averaged over 3 steps.
constexpr double kRounding = 16 * kSamples * eps<double>;

TEST(LocalStatistics, AreThoseOfTheOwnerAlone) {
  for (const LossReduction reduction :
       {LossReduction::local_mean, LossReduction::global_mean, LossReduction::sum})
    for (const int ranks : {2, 3}) {
      const CurvatureOptions options = options_of(reduction);
      const std::vector<LocalRun> runs = run_all(ranks, local(options)),
                                  sums = run_all(ranks, options);
      int compared = 0;
      for (std::size_t i = 0; i < runs[0].averages.size(); ++i) {
        const int owner = runs[0].owners[i];
        const auto at = static_cast<std::size_t>(owner);
        const LocalRun alone =
            run(comm::make_self(), options,
                {.data_of = owner, .loss_factor = loss_factor(reduction, ranks)});
        if (alone.averages[i].empty()) continue;
        EXPECT_TRUE(near(runs[at].averages[i], alone.averages[i], kRounding)) << i;
        EXPECT_FALSE(near(sums[at].averages[i], alone.averages[i], 1e-3)) << i;
        ++compared;
      }
      EXPECT_EQ(compared, 7);  // Two of each linear layer, one of the norm.
    }
}

TEST(LocalStatistics, AreThoseOfAllWhereAllHaveTheSameSamples) {
  const std::function<void(CurvatureOptions&)> methods[] = {
      [](CurvatureOptions&) {},
      [](CurvatureOptions& o) { o.distribution.grad_worker_fraction = 1; },
      [](CurvatureOptions& o) { o.distribution.split_factors = true; },
      [](CurvatureOptions& o) { o.inverse.method = kfac::InverseMethod::eigen; },
      [](CurvatureOptions& o) { o.refresh.staleness = kfac::Staleness::adaptive; },
      [](CurvatureOptions& o) { o.refresh.delay_inverses = true; },
      [](CurvatureOptions& o) { o.statistics.fraction = 0.5; }};
  for (const auto& method : methods) {
    CurvatureOptions options = options_of();
    method(options);
    const std::vector<LocalRun> runs = run_all(2, local(options), {.data_of = 7}),
                                sums = run_all(2, options, {.data_of = 7});
    EXPECT_TRUE(near(runs[0].directions, sums[0].directions, 1e3 * kRounding)) << &method - methods;
    EXPECT_NE(runs[0].directions, run_all(2, local(options))[0].directions);
  }
}

TEST(LocalStatistics, OfFewSamplesAreTheirRows) {
  CurvatureOptions options = options_of();
  options.statistics.new_weight = 1;
  const auto last = [&](bool low_rank) {
    options.statistics.low_rank = low_rank;
    return run_all(2, local(options), {.max_rows = kSamples})[0];
  };
  const LocalRun dense = last(false), rows = last(true);
  EXPECT_TRUE(near(rows.directions, dense.directions, 1e3 * kRounding));
  EXPECT_NE(rows.directions, dense.directions);  // They were used.
}

TEST(LocalStatistics, AreWantedAndTakenOfTheirOwnersAlone) {
  const std::vector<LocalRun> wanted = run_all(3, local(options_of())),
                              all = run_all(3, local(options_of()), {.only_wanted = false});
  for (std::size_t rank = 0; rank < wanted.size(); ++rank) {
    EXPECT_EQ(wanted[rank].averages, all[rank].averages);
    EXPECT_EQ(wanted[rank].directions, all[rank].directions);
    EXPECT_EQ(wanted[rank].reports[0].flops, all[rank].reports[0].flops);
  }
  comm::run_ranks(3, [&](auto comm) {
    kfac::Preconditioner preconditioner(comm, local(options_of()));
    const LayerId id = preconditioner.add_layer("fc", kLayers[0]);
    preconditioner.prepare();
    const bool owned = preconditioner.read_factors(id).owner == comm->rank();
    EXPECT_EQ(preconditioner.wants_input(id), owned);
    EXPECT_EQ(preconditioner.wants_grad_output(id), owned);
  });
}

TEST(LocalStatistics, AreNotSent) {
  CurvatureOptions options = options_of();
  options.refresh.statistics_interval = options.refresh.inverse_interval = 2;
  const auto bytes = [](const LocalRun& run, std::size_t step) { return run.reports[step].bytes; };
  const std::vector<LocalRun> runs = run_all(2, local(options)), sums = run_all(2, options);
  // The second step has no statistics. docs/distribution.md, "Bytes": triangles of 7, 5, 6, 3, 5
  // and 4 rows and 3 x 3 of the norm; the flags of both ranks travel with statistics, also where
  // there is nothing else.
  EXPECT_EQ(bytes(sums[0], 2) - bytes(runs[0], 2), 8U * (28 + 15 + 21 + 6 + 15 + 10 + 9));
  EXPECT_EQ(bytes(runs[0], 2) - bytes(runs[0], 1), 8U * comm::kFlagElements);
  EXPECT_EQ(bytes(runs[0], 1), bytes(sums[0], 1));
  EXPECT_EQ(runs[0].reports[1].bytes_skipped, 0);
  EXPECT_GT(sums[0].reports[1].bytes_skipped, 0);
}

TEST(LocalStatistics, NeedSamplesOnEveryRank) {
  const CurvatureOptions options = options_of(LossReduction::sum);
  EXPECT_NO_THROW(run_all(2, options, {.samples = 0}));
  try {
    run_all(2, local(options), {.samples = 0});
    FAIL() << "a statistic of no samples was accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what())
                  .find("1 of the 2 ranks have recorded no sample in this step; local_statistics"),
              std::string::npos)
        << error.what();
  }
}

TEST(LocalStatistics, AreRefusedWithSecondMomentsOfAllRanks) {
  CurvatureOptions options = local(options_of());
  EXPECT_NO_THROW(options.validate());
  options.inverse.method = kfac::InverseMethod::ekfac;
  options.refresh.inverse_interval = 2;
  EXPECT_THROW(options.validate(), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::testing::local_statistics
