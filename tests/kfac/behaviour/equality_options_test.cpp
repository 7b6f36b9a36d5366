#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/natural_gradient.h"
#include "support/near.h"
#include "support/plain_mlp.h"
#include "support/plain_training.h"

// Options that must not change the result, or where theory says that two of them agree.
namespace dkfac::testing {
namespace {

using Weights = std::vector<double>;
using Mlp = PlainMlp<double>;
using Cnn = PlainNet<double>;

/// A net with the maximum rows of its layers set, as low-rank factors need.
struct CountedMlp : Mlp {
  explicit CountedMlp(std::uint64_t seed) : Mlp(seed) {
    for (auto& layer : layers) std::get<LinearSpec>(layer.spec).max_rows = kRows;
  }
  static constexpr std::int64_t kRows = 6;
};

optim::KfacOptions base_options() {
  optim::KfacOptions options{.curvature = natural_gradient()};
  options.curvature.damping = 1e-2;
  options.curvature.dtype = DType::f64;
  return options;
}

MakeOptimizer maker_of(const optim::KfacOptions& options, Backend backend = Backend::fast) {
  return [options, backend](auto comm) {
    return optim::make_kfac(comm, options, Device::cpu(), {.backend = backend});
  };
}

TrainSettings batch_settings(std::int64_t global_batch) {
  TrainSettings settings;
  settings.steps = 20;
  settings.global_batch = global_batch;
  settings.lr = [](int) { return 0.01; };
  return settings;
}

TEST(EqualityOfForms, LowRankIsDense) {
  optim::KfacOptions dense = base_options(), low_rank = base_options();
  dense.curvature.statistics.new_weight = low_rank.curvature.statistics.new_weight = 1;
  dense.curvature.statistics.low_rank = false;
  const TrainSettings small = batch_settings(CountedMlp::kRows);
  for (const Backend backend : {Backend::fast, Backend::reference})
    for (const int ranks : {1, 2, 3})
      // 20 steps at condition 1e4 of a factor 33 wide: 20 * 33 * 1e4 * eps.
      EXPECT_TRUE(near(train_ranks<double, CountedMlp>(ranks, maker_of(low_rank, backend), small),
                       train_ranks<double, CountedMlp>(ranks, maker_of(dense, backend), small),
                       20 * 33 * 1e4 * eps<double>))
          << ranks;
  // Control: six rows of the first layer, 33 wide, are smaller on the wire, so they were used.
  const auto bytes = [&](const optim::KfacOptions& kfac) {
    std::uint64_t sum = 0;
    (void)train<double, CountedMlp>(comm::make_self(), maker_of(kfac), small,
                                    [&](const kfac::StepReport& report) { sum += report.bytes; });
    return sum;
  };
  EXPECT_LT(bytes(low_rank), bytes(dense));
}

TEST(EqualityOfForms, ASolveIsAProductWithTheInverse) {
  // The form of an inverse follows from how often it is used.
  TrainSettings one_step = batch_settings(24);
  one_step.steps = 1;
  const auto after_one_step = [&](int interval) {
    optim::KfacOptions kfac = base_options();
    kfac.curvature.refresh.inverse_interval = interval;
    return train_ranks<double, Cnn>(1, maker_of(kfac), one_step);
  };
  const Weights solved = after_one_step(1), multiplied = after_one_step(1000);
  // A solve at condition 1e3 of a factor 49 wide: 100 * 49 * 1e3 * eps.
  EXPECT_TRUE(near(solved, multiplied, 100 * 49 * 1e3 * eps<double>));
  EXPECT_NE(solved, multiplied);  // Control: other bits, so there were two forms.
}

TEST(EqualityOfSharing, ReduceIsExpandWhereThereIsOnePosition) {
  optim::KfacOptions expand = base_options(), reduce = base_options();
  reduce.curvature.statistics.sharing = kfac::WeightSharing::reduce;
  const TrainSettings run = batch_settings(24);
  for (const int ranks : {1, 2})
    EXPECT_TRUE(near(train_ranks<double, Mlp>(ranks, maker_of(reduce), run),
                     train_ranks<double, Mlp>(ranks, maker_of(expand), run), 1e-12));
  // Control: a convolution has sixteen.
  EXPECT_FALSE(near(train_ranks<double, Cnn>(1, maker_of(reduce), run),
                    train_ranks<double, Cnn>(1, maker_of(expand), run), 1e-3));
}

/// One step of a net on a batch that holds its first half twice.
template <class Net>
Weights step_on_doubled_half(int ranks, double fraction) {
  optim::KfacOptions kfac = base_options();
  kfac.curvature.statistics.fraction = fraction;
  Weights parameters;
  comm::run_ranks(ranks, [&](const std::shared_ptr<comm::Communicator>& comm) {
    const auto optimizer = optim::make_kfac(comm, kfac);
    Net net(3);
    const auto ids = register_layers(*optimizer, net);
    optimizer->prepare();
    const std::int64_t n = 12 / ranks;
    for (std::uint64_t step = 0; step < 5; ++step) {
      PlainBatch<double> batch = plain_batch<double>(step, comm->rank() * n, n);
      const PlainBatch<double> half = batch;
      batch.n *= 2;
      batch.x.insert(batch.x.end(), half.x.begin(), half.x.end());
      batch.t.insert(batch.t.end(), half.t.begin(), half.t.end());
      const PlainHooks hooks = optimizer_hooks<double>(*optimizer, ids, {1, 24});
      net.forward(batch, hooks);
      net.backward(1 / static_cast<double>(batch.n), hooks);
      EXPECT_TRUE(optimizer->step({.lr = 0.01, .flags = {}}, Stream::cpu()).updated);
    }
    if (comm->rank() == 0) parameters = net.parameters();
  });
  return parameters;
}

TEST(EqualityOfFractions, HalfOfABatchOfTwoEqualHalvesIsTheWhole) {
  for (const int ranks : {1, 2, 3}) {
    EXPECT_TRUE(
        near(step_on_doubled_half<Cnn>(ranks, 0.5), step_on_doubled_half<Cnn>(ranks, 1), 1e-12))
        << ranks;
    EXPECT_TRUE(
        near(step_on_doubled_half<Mlp>(ranks, 0.5), step_on_doubled_half<Mlp>(ranks, 1), 1e-12))
        << ranks;
  }
  // Control: a third of the batch is other samples.
  EXPECT_FALSE(near(step_on_doubled_half<Mlp>(1, 0.34), step_on_doubled_half<Mlp>(1, 1), 1e-3));
}

}  // namespace
}  // namespace dkfac::testing
