#include <functional>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/core/random.h"

#include "support/natural_gradient.h"
#include "support/near.h"
#include "support/plain_training.h"

// Options that change what is recorded and the form in which it is stored, from records to
// preconditioned gradients: each against another way to the same numbers.
namespace dkfac::testing {
namespace {

using kfac::CurvatureOptions;

CurvatureOptions base() {
  CurvatureOptions options = natural_gradient();
  options.damping = 1e-2;
  options.dtype = DType::f64;
  options.statistics.new_weight = 1;
  options.loss_reduction = LossReduction::sum;
  return options;
}

/// A batch of one layer: inputs and output gradients, one after the other per sample.
struct Batch {
  std::int64_t n = 0;
  std::vector<double> x, dy;
};

Batch random_batch(std::int64_t n, std::int64_t in, std::int64_t out, std::uint64_t seed) {
  Random random(seed);
  Batch batch{n, {}, {}};
  for (std::int64_t i = 0; i < n * in; ++i) batch.x.push_back(random.normal());
  for (std::int64_t i = 0; i < n * out; ++i) batch.dy.push_back(random.normal());
  return batch;
}

/// Shapes of one sample.
struct Shapes {
  Shape x, dy;
};
Shape with_samples(std::int64_t n, const Shape& shape) {
  std::vector<std::int64_t> all{n};
  for (int i = 0; i < shape.ndim(); ++i) all.push_back(shape[i]);
  return Shape(all);
}

/// Sums of at most 100 terms, then matrices with eigenvalues above damping/100, i.e. 1e-4 next to
/// entries of about 10: 1e5 * 100 * eps.
constexpr double kTolerance = 1e7 * eps<double>;

/// A step for each of `batches`, split over ranks and records; the preconditioned gradient of the
/// last one, which every rank must have.
struct Outcome {
  std::vector<double> gradient;
  std::uint64_t bytes = 0;
};
Outcome run(int ranks, const CurvatureOptions& options, const LayerSpec& spec, const Shapes& shapes,
            const std::vector<Batch>& batches) {
  Outcome outcome;
  std::vector<std::vector<double>> gradients(pos(ranks));
  comm::run_ranks(ranks, [&](std::shared_ptr<comm::Communicator> comm) {
    kfac::Preconditioner preconditioner(comm, options);
    const LayerId id = preconditioner.add_layer("layer", spec);
    std::vector<double> w, b;
    for (const Batch& batch : batches) {
      const int parts = comm->size() * options.statistics.micro_batches;
      const std::int64_t n = batch.n / parts, in = shapes.x.numel(), out = shapes.dy.numel();
      for (int record = 0; record < options.statistics.micro_batches; ++record) {
        const std::int64_t first = (comm->rank() * options.statistics.micro_batches + record) * n;
        const RecordScale scale{1, batch.n};
        preconditioner.record_input(id,
                                    view_of(batch.x.data() + first * in, with_samples(n, shapes.x)),
                                    Stream::cpu(), scale);
        preconditioner.record_grad_output(
            id, view_of(batch.dy.data() + first * out, with_samples(n, shapes.dy)), Stream::cpu(),
            scale);
      }
      w.resize(static_cast<std::size_t>(dkfac::weight_numel(spec)));
      b.resize(static_cast<std::size_t>(dkfac::bias_numel(spec)));
      double value = 0;
      for (std::vector<double>* part : {&w, &b})
        for (double& g : *part) g = std::sin(++value);
      const auto view = [](std::vector<double>& v) {
        return v.empty() ? TensorView{} : view_of(v.data(), {std::ssize(v)});
      };
      const std::vector<kfac::LayerGrad> grads{{id, view(w), view(b)}};
      const kfac::StepReport report = preconditioner.step(grads);
      EXPECT_TRUE(report.updated);
      if (comm->rank() == 0) outcome.bytes = report.bytes;
    }
    w.insert(w.end(), b.begin(), b.end());
    gradients[pos(comm->rank())] = w;
  });
  outcome.gradient = gradients[0];
  for (const std::vector<double>& gradient : gradients)
    EXPECT_TRUE(near(gradient, outcome.gradient, kTolerance));
  return outcome;
}

TEST(LowRank, GivesWhatDenseFactorsGiveAtEveryNumberOfRanksAndRecords) {
  const std::int64_t in = 40, out = 30, rows = 12;
  const std::vector<Batch> batches{random_batch(rows, in, out, 1), random_batch(rows, in, out, 2)};
  const Shapes shapes{{in}, {out}};
  const LinearSpec spec{.in = in, .out = out, .bias = true, .max_rows = rows};
  CurvatureOptions dense = base(), low_rank = base();
  dense.statistics.low_rank = false;
  dense.refresh.inverse_interval = low_rank.refresh.inverse_interval = 1;
  const Outcome expected = run(1, dense, spec, shapes, batches);
  for (const int ranks : {1, 2, 3})
    for (const int records : {1, 2}) {
      low_rank.statistics.micro_batches = records;
      const Outcome actual = run(ranks, low_rank, spec, shapes, batches);
      EXPECT_TRUE(near(actual.gradient, expected.gradient, kTolerance)) << ranks << ' ' << records;
      // Rows of both factors replace triangles.
      const std::int64_t fewer = 41 * 42 / 2 + 30 * 31 / 2 - rows * (41 + 30);
      if (ranks > 1) {
        EXPECT_EQ(run(ranks, dense, spec, shapes, batches).bytes - actual.bytes,
                  8U * static_cast<unsigned>(fewer));
      }
    }
  // With inverses that their owner has sent.
  low_rank.distribution.grad_worker_fraction = 1;
  EXPECT_TRUE(
      near(run(2, low_rank, spec, shapes, batches).gradient, expected.gradient, kTolerance));
}

TEST(LowRank, TakesFewerRowsThanThereIsRoomForAndRefusesMore) {
  const Shapes shapes{{40}, {30}};
  const LinearSpec spec{.in = 40, .out = 30, .bias = false, .max_rows = 12};
  CurvatureOptions dense = base();
  dense.statistics.low_rank = false;
  // After a full step, so that rows left over would show.
  const std::vector<Batch> fewer{random_batch(12, 40, 30, 1), random_batch(6, 40, 30, 2)};
  EXPECT_TRUE(near(run(2, base(), spec, shapes, fewer).gradient,
                   run(2, dense, spec, shapes, fewer).gradient, kTolerance));
  EXPECT_THROW((void)run(1, base(), spec, shapes, {random_batch(13, 40, 30, 1)}), InvalidArgument);
}

TEST(StatisticsFraction, IsTheStatisticOfTheFirstSamples) {
  const LinearSpec spec{.in = 3, .out = 2, .bias = true};
  const Shapes shapes{{3}, {2}};
  struct Part {
    double fraction;
    std::int64_t n, first;
  };
  // ceil(4.5), and a product that is rounded to just above 7.
  for (const auto& [fraction, n, first] : {Part{0.5, 9, 5}, Part{0.07, 100, 7}})
    for (const auto method : {kfac::InverseMethod::cholesky, kfac::InverseMethod::ekfac}) {
      CurvatureOptions all = base();
      all.inverse.method = method;
      all.refresh.inverse_interval = method == kfac::InverseMethod::ekfac ? 100 : 1;
      CurvatureOptions part = all;
      part.statistics.fraction = fraction;
      // The second step changes the scales of EKFAC.
      const std::vector<Batch> whole{random_batch(n, 3, 2, 3), random_batch(n, 3, 2, 4)};
      std::vector<Batch> some = whole;
      for (Batch& batch : some) batch.n = first;
      const Outcome expected = run(1, all, spec, shapes, some);
      EXPECT_TRUE(near(run(1, part, spec, shapes, whole).gradient, expected.gradient, kTolerance));
      EXPECT_FALSE(near(run(1, all, spec, shapes, whole).gradient, expected.gradient, 1e-3));
    }
}

TEST(StatisticsFraction, TakesWholeGhostGroupsOfABatchNorm) {
  // 8 samples in groups of 4; a quarter would be 2 samples, so the first group is used.
  const auto gradient = [](double fraction, std::int64_t n, Shape one_group = {1, 2}) {
    CurvatureOptions options = base();
    options.statistics.fraction = fraction;
    kfac::Preconditioner preconditioner(comm::make_self(), options);
    const auto id = preconditioner.add_layer("bn", NormSpec{.channels = 2});
    const Batch batch = random_batch(8, 2, 2, 4);
    const std::vector<double> mean{0.1, 0.2, -0.3, 0.4}, inv_std{1, 2, 3, 4};
    const Shape groups = n == 4 ? one_group : Shape{n / 4, 2};
    preconditioner.record_normalization(
        id, view_of(batch.x.data(), {n, 2}), view_of(mean.data(), groups),
        view_of(inv_std.data(), groups), view_of(batch.dy.data(), {n, 2}));
    std::vector<double> gamma{1, 2}, beta{3, 4};
    const std::vector<kfac::LayerGrad> grads{
        {id, view_of(gamma.data(), {2}), view_of(beta.data(), {2})}};
    (void)preconditioner.step(grads);
    gamma.insert(gamma.end(), beta.begin(), beta.end());
    return gamma;
  };
  EXPECT_EQ(gradient(0.25, 8), gradient(1, 4));
  EXPECT_NE(gradient(1, 8), gradient(1, 4));
  // A single group is the batch, of which any samples may be chosen.
  EXPECT_EQ(gradient(0.25, 4, {1, 2}), gradient(0.25, 4, {2}));
  EXPECT_NE(gradient(0.25, 4, {1, 2}), gradient(1, 4, {1, 2}));
}

TEST(Sharing, ReduceIsTheStatisticOfMeansAndSumsOverPositions) {
  const std::int64_t n = 6, positions = 4;
  const LinearSpec spec{.in = 3, .out = 2, .bias = true};
  const Batch batch = random_batch(n, positions * 3, positions * 2, 5);
  Batch reduced{n, std::vector<double>(n * 3), std::vector<double>(n * 2)};
  for (std::int64_t s = 0; s < n; ++s)
    for (std::int64_t p = 0; p < positions; ++p) {
      for (std::int64_t i = 0; i < 3; ++i)
        reduced.x[pos(s * 3 + i)] += batch.x[pos((s * positions + p) * 3 + i)] / positions;
      for (std::int64_t o = 0; o < 2; ++o)
        reduced.dy[pos(s * 2 + o)] += batch.dy[pos((s * positions + p) * 2 + o)];
    }
  CurvatureOptions reduce = base();
  reduce.statistics.sharing = kfac::WeightSharing::reduce;
  const Outcome expected = run(1, base(), spec, {{3}, {2}}, {reduced});
  const Shapes shapes{{positions, 3}, {positions, 2}};
  EXPECT_TRUE(near(run(1, reduce, spec, shapes, {batch}).gradient, expected.gradient, kTolerance));
  EXPECT_FALSE(near(run(1, base(), spec, shapes, {batch}).gradient, expected.gradient, 1e-3));
}

TEST(Groups, AreLayersOfTheirOwn) {
  const std::int64_t n = 8;
  const Batch batch = random_batch(n, 4, 6, 6);
  const Conv2dSpec grouped{.in = 4, .out = 6, .bias = false, .groups = 2};
  // A fraction of 1: with inverses that their owner has sent.
  for (const auto& [ranks, fraction] : {std::pair{1, 0.0}, {2, 0.0}, {2, 1.0}}) {
    CurvatureOptions options = base();
    options.distribution.grad_worker_fraction = fraction;
    const std::vector<double> whole =
        run(ranks, options, grouped, {{1, 1, 4}, {1, 1, 6}}, {batch}).gradient;
    // Each group by dense loops: G^-1 V A^-1 of a linear layer with the gradient that it has there.
    for (const std::int64_t group : {0, 1}) {
      Batch part{n, {}, {}};
      for (std::int64_t s = 0; s < n; ++s) {
        for (std::int64_t i = 0; i < 2; ++i) part.x.push_back(batch.x[pos(s * 4 + group * 2 + i)]);
        for (std::int64_t o = 0; o < 3; ++o)
          part.dy.push_back(batch.dy[pos(s * 6 + group * 3 + o)]);
      }
      kfac::Preconditioner alone(comm::make_self(), base());
      const auto id = alone.add_layer("group", LinearSpec{.in = 2, .out = 3, .bias = false});
      alone.record_input(id, view_of(part.x.data(), {n, 2}));
      alone.record_grad_output(id, view_of(part.dy.data(), {n, 3}));
      std::vector<double> w;
      for (int i = 1; i <= 6; ++i) w.push_back(std::sin(static_cast<double>(group * 6 + i)));
      const std::vector<kfac::LayerGrad> grads{{id, view_of(w.data(), {6}), {}}};
      (void)alone.step(grads);
      const std::vector<double> mine(whole.begin() + group * 6, whole.begin() + group * 6 + 6);
      EXPECT_TRUE(near(mine, w, kTolerance)) << group;
    }
  }
}

TEST(MicroBatches, OfGroupsAddUp) {
  const Conv2dSpec grouped{.in = 4, .out = 6, .bias = true, .groups = 2};
  const Shapes shapes{{1, 1, 4}, {1, 1, 6}};
  const std::vector<Batch> batches{random_batch(12, 4, 6, 7)};
  CurvatureOptions parts = base();
  parts.statistics.micro_batches = 3;
  EXPECT_TRUE(near(run(2, parts, grouped, shapes, batches).gradient,
                   run(1, base(), grouped, shapes, batches).gradient, kTolerance));
}

TEST(FullFisher, OfOneChannelIsTheUnitWiseBlock) {
  const auto train = [](kfac::NormFisher form, std::int64_t channels, int ranks) {
    std::vector<double> all;
    comm::run_ranks(ranks, [&](auto comm) {
      CurvatureOptions options = base();
      options.statistics.norm_fisher = form;
      options.statistics.new_weight = 0.3;
      options.norm_damping = 4;
      kfac::Preconditioner preconditioner(comm, options);
      const auto id = preconditioner.add_layer("bn", NormSpec{.channels = channels});
      std::vector<double> gamma, beta;
      for (std::uint64_t step = 0; step < 3; ++step) {
        const Batch batch = random_batch(12, channels, channels, 8 + step);
        const std::int64_t n = 12 / comm->size(), first = comm->rank() * n * channels;
        const std::vector<double> mean(pos(channels), 0.1), inv_std(pos(channels), 1.5);
        preconditioner.record_normalization(
            id, view_of(batch.x.data() + first, {n, channels}), view_of(mean.data(), {channels}),
            view_of(inv_std.data(), {channels}), view_of(batch.dy.data() + first, {n, channels}));
        gamma.assign(pos(channels), 1);
        beta.assign(pos(channels), -2);
        const std::vector<kfac::LayerGrad> grads{
            {id, view_of(gamma.data(), {channels}), view_of(beta.data(), {channels})}};
        (void)preconditioner.step(grads);
      }
      if (comm->rank() != 0) return;
      all = gamma;
      all.insert(all.end(), beta.begin(), beta.end());
    });
    return all;
  };
  using kfac::NormFisher;
  for (const int ranks : {1, 2})
    EXPECT_TRUE(
        near(train(NormFisher::full, 1, ranks), train(NormFisher::unit_wise, 1, 1), kTolerance));
  // Of two channels it also has what they have in common.
  EXPECT_FALSE(near(train(NormFisher::full, 2, 1), train(NormFisher::unit_wise, 2, 1), 1e-3));
}

TEST(Operand, TakesItsFirstRangeFromWhatIsRounded) {
  // reduce sums the gradients of 1024 positions, far beyond the range of one of them.
  const std::int64_t positions = 1024;
  CurvatureOptions options = base();
  options.statistics.sharing = kfac::WeightSharing::reduce;
  Batch batch{2, {}, {}};
  batch.x.assign(pos(2 * positions), 1.0);
  batch.dy.assign(pos(2 * positions), 1e-3);
  const LinearSpec spec{.in = 1, .out = 1, .bias = false};
  const Shapes shapes{{positions, 1}, {positions, 1}};
  const Outcome exact = run(1, options, spec, shapes, {batch});
  options.statistics.operand = DType::f16;
  // Both factors are a square of one number, which f16 rounds by 2^-11.
  EXPECT_TRUE(near(run(1, options, spec, shapes, {batch}).gradient, exact.gradient, 4.5 * 0x1p-11));
}

TEST(Ekfac, DividesByTheSecondMomentsOfGradients) {
  CurvatureOptions options = base();
  options.inverse.method = kfac::InverseMethod::ekfac;
  options.refresh.inverse_interval = 100;
  const LinearSpec spec{.in = 1, .out = 1, .bias = false};
  const std::vector<Batch> batches{random_batch(6, 1, 1, 11), random_batch(6, 1, 1, 12)};
  for (const int records : {1, 2, 3}) {
    options.statistics.micro_batches = records;
    double a = 0, g = 0, moment = 0;
    for (int s = 0; s < 6; ++s) {
      const double x = batches[1].x[pos(s)], dy = batches[1].dy[pos(s)];
      moment += x * x * dy * dy / 6;
      a += batches[0].x[pos(s)] * batches[0].x[pos(s)] / 6;
      g += batches[0].dy[pos(s)] * batches[0].dy[pos(s)] / 6;
    }
    const double v = std::sin(1.0);
    // Before there are eigenvectors to project on: products of eigenvalues.
    EXPECT_TRUE(near(run(1, options, spec, {{1}, {1}}, {batches[0]}).gradient,
                     std::vector<double>{v / (a * g + 1e-2)}, kTolerance));
    EXPECT_TRUE(near(run(1, options, spec, {{1}, {1}}, batches).gradient,
                     std::vector<double>{v / (moment + 1e-2)}, kTolerance));
  }
}

TEST(Ekfac, GivesTheSameStepAtEveryNumberOfRanks) {
  CurvatureOptions options = base();
  options.inverse.method = kfac::InverseMethod::ekfac;
  options.statistics.new_weight = 0.3;
  options.refresh.inverse_interval = 3;  // scales along eigenvectors that are then replaced
  const LinearSpec spec{.in = 3, .out = 2};
  std::vector<Batch> batches;
  for (std::uint64_t step = 0; step < 6; ++step)
    batches.push_back(random_batch(12, 3, 2, 20 + step));
  const Outcome alone = run(1, options, spec, {{3}, {2}}, batches);
  options.distribution.grad_worker_fraction = 1;
  for (const int ranks : {2, 3}) {
    options.statistics.micro_batches = ranks - 1;
    EXPECT_TRUE(
        near(run(ranks, options, spec, {{3}, {2}}, batches).gradient, alone.gradient, kTolerance))
        << ranks;
  }
  options.inverse.method = kfac::InverseMethod::eigen;
  EXPECT_FALSE(near(run(2, options, spec, {{3}, {2}}, batches).gradient, alone.gradient, 1e-3));
}

TEST(Ekfac, WantsBothRecordsOfABatchAfterEachOther) {
  CurvatureOptions options = base();
  options.inverse.method = kfac::InverseMethod::ekfac;
  options.refresh.inverse_interval = 100;
  options.statistics.micro_batches = 2;
  kfac::Preconditioner preconditioner(comm::make_self(), options);
  const auto id = preconditioner.add_layer("fc", LinearSpec{.in = 1, .out = 1, .bias = false});
  const double x = 1;
  const ConstTensorView view = view_of(&x, {1, 1});
  for (int record = 0; record < 2; ++record) {
    preconditioner.record_input(id, view);
    preconditioner.record_grad_output(id, view);
  }
  double gradient = 1;
  const std::vector<kfac::LayerGrad> grads{{id, view_of(&gradient, {1}), {}}};
  (void)preconditioner.step(grads);
  EXPECT_THROW(preconditioner.record_grad_output(id, view), InvalidArgument);
  preconditioner.record_input(id, view);
  EXPECT_THROW(preconditioner.record_input(id, view), InvalidArgument);
}

TEST(Ekfac, NeedsEveryRankToHoldTheEigenvectors) {
  comm::run_ranks(2, [](auto comm) {
    CurvatureOptions options = base();
    options.inverse.method = kfac::InverseMethod::ekfac;
    options.refresh.inverse_interval = 2;
    kfac::Preconditioner preconditioner(comm, options);
    (void)preconditioner.add_layer("fc", LinearSpec{.in = 1, .out = 1});
    try {
      preconditioner.prepare();
      ADD_FAILURE() << "accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("grad_worker_fraction"), std::string::npos);
    }
  });
}

}  // namespace
}  // namespace dkfac::testing
