#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/error.h"
#include "dkfac/core/random.h"
#include "dkfac/kfac/preconditioner.h"

#include "support/natural_gradient.h"
#include "support/near.h"
#include "support/saved_state.h"

// Rows of low-rank statistics where samples do not divide evenly among ranks.
namespace dkfac::testing {
namespace {

constexpr std::int64_t kIn = 80, kOut = 70;

/// Samples of a few positions each; consecutive shares, the first ranks taking one more.
struct Data {
  std::int64_t samples = 0, positions = 1;

  [[nodiscard]] std::int64_t first(int rank, int ranks) const {
    std::int64_t sum = 0;
    for (int r = 0; r < rank; ++r) sum += count(r, ranks);
    return sum;
  }
  [[nodiscard]] std::int64_t count(int rank, int ranks) const {
    std::int64_t n = 0;
    for (std::int64_t s = rank; s < samples; s += ranks) ++n;
    return n;
  }
  [[nodiscard]] std::vector<double> values(std::int64_t width, std::uint64_t seed) const {
    std::vector<double> all(static_cast<std::size_t>(samples * positions * width));
    Random random(seed);
    fill_normal(view_of(all.data(), {std::ssize(all)}), 0, 1, random);
    return all;
  }
  [[nodiscard]] LinearSpec spec() const {
    return {.in = kIn,
            .out = kOut,
            .bias = false,
            .max_rows = samples * positions,
            .sample_rows = positions};
  }
};

kfac::CurvatureOptions low_rank_options() {
  kfac::CurvatureOptions options = natural_gradient();
  options.damping = 1e-2;
  options.dtype = DType::f64;
  options.statistics.new_weight = 1;
  options.refresh.statistics_interval = 3;
  options.loss_reduction = LossReduction::sum;
  return options;
}

struct Stopped {
  std::vector<double> direction;  ///< Of the last step.
  std::vector<SavedState> ranks;
};

/// Steps [from, to) after `before`. From step 5 on another damping renews inverses from averages.
Stopped run(int ranks, const Data& data, const kfac::CurvatureOptions& options, int from, int to,
            const Stopped* before = nullptr) {
  Stopped after;
  after.ranks.resize(static_cast<std::size_t>(ranks));
  comm::run_ranks(ranks, [&](auto comm) {
    kfac::Preconditioner preconditioner(comm, options);
    const auto id = preconditioner.add_layer("fc", data.spec());
    if (before != nullptr) {
      Loader loader(before->ranks, comm->rank());
      preconditioner.visit_state(loader);
    }
    const std::int64_t n = data.count(comm->rank(), ranks), p = data.positions;
    const std::int64_t row = data.first(comm->rank(), ranks) * p;
    std::vector<double> w(kIn * kOut);
    for (int step = from; step < to; ++step) {
      if (step == 5) preconditioner.set_damping(2e-2);
      if (preconditioner.wants_statistics()) {
        const auto seed = static_cast<std::uint64_t>(step);
        const auto x = data.values(kIn, 2 * seed), dy = data.values(kOut, 2 * seed + 1);
        const RecordScale scale{1, data.samples};
        preconditioner.record_input(id, view_of(x.data() + row * kIn, {n, p, kIn}), Stream::cpu(),
                                    scale);
        preconditioner.record_grad_output(id, view_of(dy.data() + row * kOut, {n, p, kOut}),
                                          Stream::cpu(), scale);
      }
      for (std::size_t i = 0; i < w.size(); ++i) w[i] = std::sin(static_cast<double>(i + 1));
      const std::vector<kfac::LayerGrad> grads{{id, view_of(w.data(), {kOut, kIn}), {}}};
      EXPECT_TRUE(preconditioner.step(grads).updated);
    }
    Saver saver;
    preconditioner.visit_state(saver);
    after.ranks[static_cast<std::size_t>(comm->rank())] = std::move(saver.state);
    if (comm->rank() == 0) after.direction = w;
  });
  return after;
}

/// Matrices with eigenvalues above damping / 100 next to entries of about 1.
constexpr double kShareTolerance = 1e-10;

TEST(LowRankShares, ContinueAtAnotherNumberOfRanks) {
  const Data data{.samples = 25};
  const Stopped whole = run(1, data, low_rank_options(), 0, 6);
  const Stopped alone = run(1, data, low_rank_options(), 0, 2);
  EXPECT_EQ(alone.ranks[0].at("fc.a_average").shape, (Shape{25 * kIn}));  // In low rank.
  const Stopped three = run(3, data, low_rank_options(), 2, 5, &alone);
  const Stopped two = run(2, data, low_rank_options(), 5, 6, &three);
  EXPECT_TRUE(near(two.direction, whole.direction, kShareTolerance));
  // Control: the damping of the last step made another inverse of the same average.
  EXPECT_FALSE(near(three.direction, whole.direction, 1e-3));
}

TEST(LowRankShares, AreOfWholeSamples) {
  const Data data{.samples = 7, .positions = 4};
  kfac::CurvatureOptions dense = low_rank_options();
  dense.statistics.low_rank = false;
  const Stopped expected = run(1, data, dense, 0, 1);
  for (const int ranks : {1, 2, 3})
    EXPECT_TRUE(near(run(ranks, data, low_rank_options(), 0, 1).direction, expected.direction,
                     kShareTolerance))
        << ranks;
  EXPECT_EQ(run(1, data, low_rank_options(), 0, 1).ranks[0].at("fc.a_average").shape,
            (Shape{28 * kIn}));
  kfac::CurvatureOptions reduce = low_rank_options(), dense_reduce = dense;
  reduce.statistics.sharing = dense_reduce.statistics.sharing = kfac::WeightSharing::reduce;
  EXPECT_TRUE(near(run(2, data, reduce, 0, 1).direction, run(1, data, dense_reduce, 0, 1).direction,
                   kShareTolerance));
}

std::string prepare_message(const std::function<LinearSpec(int rank)>& spec) {
  std::string message;
  comm::run_ranks(2, [&](auto comm) {
    kfac::Preconditioner preconditioner(comm, low_rank_options());
    (void)preconditioner.add_layer("fc", spec(comm->rank()));
    try {
      preconditioner.prepare();
    } catch (const InvalidArgument& error) {
      if (comm->rank() == 0) message = error.what();
    }
  });
  return message;
}

TEST(LowRankShares, AreAgreedOn) {
  const auto with = [](std::int64_t rows, std::int64_t sample) {
    return LinearSpec{.in = kIn, .out = kOut, .max_rows = rows, .sample_rows = sample};
  };
  EXPECT_EQ(prepare_message([&](int) { return with(24, 2); }), "");
  EXPECT_NE(prepare_message([&](int rank) { return with(24 + 2 * rank, 2); }).find("max_rows 26"),
            std::string::npos);
  EXPECT_NE(prepare_message([&](int rank) { return with(24, 1 + rank); }).find("max_rows 24 of 2"),
            std::string::npos);
  EXPECT_THROW(validate(LayerSpec(with(25, 2)), "fc"), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::testing
