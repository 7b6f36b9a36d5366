#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/kfac/preconditioner.h"

#include "support/fisher.h"
#include "support/natural_gradient.h"
#include "support/near.h"
#include "support/plain_training.h"
#include "support/saved_state.h"

// Errors observed in other K-FAC libraries, as acceptance tests of this one; docs/project/proof.md
// describes the observations.
namespace dkfac::testing {
namespace {

using fisher::cosine;
using Weights = std::vector<double>;
using Net = PlainNet<double>;

kfac::CurvatureOptions curvature(kfac::InverseMethod method = kfac::InverseMethod::cholesky) {
  kfac::CurvatureOptions options = natural_gradient();
  options.damping = 1e-2;
  options.dtype = DType::f64;
  options.inverse.method = method;
  if (method == kfac::InverseMethod::ekfac) options.refresh.inverse_interval = 2;
  return options;
}

constexpr kfac::InverseMethod kMethods[] = {kfac::InverseMethod::cholesky,
                                            kfac::InverseMethod::eigen};

TensorView whole(Weights& x) { return view_of(x.data(), {static_cast<std::int64_t>(x.size())}); }

/// One linear layer 6 -> 4, data of a fixed seed, and a loop that calls the library as users do.
struct OneLayer {
  static constexpr std::int64_t kSamples = 32, kIn = 6, kOut = 4;

  explicit OneLayer(const kfac::CurvatureOptions& options)
      : preconditioner(comm::make_self(), options),
        fc(preconditioner.add_layer("fc", LinearSpec{.in = kIn, .out = kOut, .bias = false})) {
    Random random(7);
    fill_normal(whole(x), 0, 1, random);
    fill_normal(whole(g), 0, 1, random);
    // Gradients as in training: small, and much smaller in some directions.
    for (std::size_t i = 0; i < g.size(); ++i) g[i] *= i % kOut == 0 ? 1 : 0.05;
  }

  /// The mean gradient of the batch.
  [[nodiscard]] Weights gradient() const {
    Weights v(kIn * kOut);
    for (std::int64_t n = 0; n < kSamples; ++n)
      for (std::int64_t o = 0; o < kOut; ++o)
        for (std::int64_t i = 0; i < kIn; ++i)
          v[pos(o * kIn + i)] += g[pos(n * kOut + o)] * x[pos(n * kIn + i)] / kSamples;
    return v;
  }

  /// The preconditioned mean gradient. The batch holds every sample `copies` times; `factor` is
  /// what the loss does to a sample's gradient.
  Weights step(double factor = 1.0 / kSamples, std::int64_t copies = 1, double loss_scale = 1) {
    Weights inputs, gradients;
    for (std::int64_t c = 0; c < copies; ++c) {
      inputs.insert(inputs.end(), x.begin(), x.end());
      gradients.insert(gradients.end(), g.begin(), g.end());
    }
    for (double& e : gradients) e *= factor;
    const std::int64_t n = kSamples * copies;
    const RecordScale scale{loss_scale, n};
    if (preconditioner.wants_statistics()) {
      preconditioner.record_input(fc, view_of(inputs.data(), {n, kIn}), Stream::cpu(), scale);
      preconditioner.record_grad_output(fc, view_of(gradients.data(), {n, kOut}), Stream::cpu(),
                                        scale);
    }
    Weights v = gradient();
    const std::vector<kfac::LayerGrad> grads{{fc, view_of(v.data(), {kOut, kIn}), {}}};
    EXPECT_TRUE(preconditioner.step(grads).updated);
    return v;
  }

  /// The running averages as they are stored: packed A, then packed G.
  Weights averages() {
    Saver saver;
    preconditioner.visit_state(saver);
    Weights all;
    for (const char* name : {"fc.a_average", "fc.g_average"}) {
      const std::string& bytes = saver.state.at(name).bytes;
      Weights part(bytes.size() / sizeof(double));
      std::memcpy(part.data(), bytes.data(), bytes.size());
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  Weights x = Weights(kSamples * kIn), g = Weights(kSamples * kOut);
  kfac::Preconditioner preconditioner;
  LayerId fc;
};

/// Packed lower triangles of x'x / n and g'g / n, by loops.
Weights statistics_of(const OneLayer& layer) {
  Weights all;
  for (const auto& [rows, width] : {std::pair{&layer.x, OneLayer::kIn}, {&layer.g, OneLayer::kOut}})
    for (std::int64_t i = 0; i < width; ++i)
      for (std::int64_t j = 0; j <= i; ++j) {
        double sum = 0;
        for (std::int64_t n = 0; n < OneLayer::kSamples; ++n)
          sum += (*rows)[pos(n * width + i)] * (*rows)[pos(n * width + j)];
        all.push_back(sum / static_cast<double>(OneLayer::kSamples));
      }
  return all;
}

enum class BadBatch { left_out, nan, good };

/// Eight batches and, after the fourth, one more.
Weights train_with(BadBatch extra, kfac::InverseMethod method) {
  const auto optimizer = optim::make_kfac(comm::make_self(), {.curvature = curvature(method)});
  Net net(3);
  const auto ids = register_layers(*optimizer, net);
  optimizer->prepare();
  const auto step = [&](PlainBatch<double> batch, bool good) {
    const PlainHooks hooks = optimizer_hooks<double>(*optimizer, ids, {1, batch.n});
    if (!good) batch.x[5] = std::numeric_limits<double>::quiet_NaN();
    net.forward(batch, hooks);
    net.backward(1 / static_cast<double>(batch.n), hooks);
    EXPECT_EQ(optimizer->step({.lr = 0.02, .flags = {}}, Stream::cpu()).updated, good);
  };
  for (std::uint64_t i = 0; i < 8; ++i) {
    if (i == 4 && extra != BadBatch::left_out)
      step(plain_batch<double>(99, 0, 24), extra == BadBatch::good);
    step(plain_batch<double>(i, 0, 24), true);
  }
  return net.parameters();
}

TEST(PeerFailures, OneNanInOneBatchLeavesNoTrace) {
  using enum kfac::InverseMethod;
  for (const kfac::InverseMethod method : {cholesky, eigen, ekfac}) {
    const Weights expected = train_with(BadBatch::left_out, method);
    for (const double w : expected) EXPECT_TRUE(std::isfinite(w));
    EXPECT_EQ(train_with(BadBatch::nan, method), expected);
    EXPECT_FALSE(near(train_with(BadBatch::good, method), expected, 1e-3));  // control
  }
}

enum class Resume { not_stopped, as_saved, inverses_recomputed };

/// Nine steps with new inverses every five, stopped after the seventh.
Weights train_nine_steps(int ranks, kfac::InverseMethod method, Resume resume) {
  optim::KfacOptions options{.curvature = curvature(method)};
  options.curvature.refresh.inverse_interval = 5;
  Weights parameters;
  comm::run_ranks(ranks, [&](std::shared_ptr<comm::Communicator> comm) {
    Net net(3);
    auto optimizer = optim::make_kfac(comm, options);
    auto ids = register_layers(*optimizer, net);
    optimizer->prepare();
    const std::int64_t n = 24 / ranks;
    for (std::uint64_t step = 0; step < 9; ++step) {
      if (step == 7 && resume != Resume::not_stopped) {
        Saver saver;
        optimizer->visit_state(saver);
        optimizer = optim::make_kfac(comm, options);
        ids = register_layers(*optimizer, net);
        optimizer->prepare();
        std::vector<SavedState> saved(static_cast<std::size_t>(ranks));
        saved[static_cast<std::size_t>(comm->rank())] = std::move(saver.state);
        Loader loader(saved, comm->rank());
        optimizer->visit_state(loader);
      }
      // As libraries do that save averages alone and invert when they load.
      const bool recompute = step == 7 && resume == Resume::inverses_recomputed;
      optimizer->set_curvature({.inverse_interval = recompute ? 1 : 5});
      const PlainHooks hooks = optimizer_hooks<double>(*optimizer, ids, {1, 24});
      net.forward(plain_batch<double>(step, comm->rank() * n, n), hooks);
      net.backward(1 / static_cast<double>(n), hooks);
      (void)optimizer->step({.lr = 0.02, .flags = {}}, Stream::cpu());
    }
    if (comm->rank() == 0) parameters = net.parameters();
  });
  return parameters;
}

TEST(PeerFailures, ResumeBetweenTwoInverseRefreshesIsBitExact) {
  for (const kfac::InverseMethod method : kMethods)
    for (const int ranks : {1, 2}) {
      const Weights expected = train_nine_steps(ranks, method, Resume::not_stopped);
      EXPECT_EQ(train_nine_steps(ranks, method, Resume::as_saved), expected) << ranks;
      EXPECT_FALSE(near(train_nine_steps(ranks, method, Resume::inverses_recomputed), expected,
                        1e-4));  // control
    }
}

TEST(PeerFailures, TheAverageIsRightFromItsFirstUpdateOn) {
  OneLayer layer(curvature());  // new_weight 0.05
  kfac::CurvatureOptions newest = curvature();
  newest.statistics.new_weight = 1;
  OneLayer unaveraged(newest);
  const Weights expected = statistics_of(layer), direction = unaveraged.step();
  EXPECT_EQ(layer.step(), direction);
  // Every update rounds a few times: 4 * 300 * eps.
  for (int update = 1; update <= 300; ++update) {
    EXPECT_TRUE(near(layer.averages(), expected, 1200 * eps<double>)) << update;
    EXPECT_TRUE(near(layer.step(), direction, 1e-10)) << update;
  }
  // Control: after fifty updates an average that starts from the identity is still far away.
  Weights from_identity = expected;
  std::size_t at = 0;
  for (const std::int64_t width : {OneLayer::kIn, OneLayer::kOut})
    for (std::int64_t i = 0; i < width; ++i)
      for (std::int64_t j = 0; j <= i; ++j, ++at) {
        const double start = i == j ? 1 : 0;
        from_identity[at] += std::pow(0.95, 50) * (start - expected[at]);
      }
  EXPECT_FALSE(near(from_identity, expected, 0.01));
}

TEST(PeerFailures, DampingMeansTheSameAtEveryBatchSizeAndLossReduction) {
  const double n = OneLayer::kSamples;
  const auto cosine_of = [&](LossReduction reduction, double factor, std::int64_t copies,
                             double loss_scale) {
    kfac::CurvatureOptions options = curvature();
    options.loss_reduction = reduction;
    OneLayer layer(options);
    return cosine(layer.step(factor, copies, loss_scale), layer.gradient());
  };
  using enum LossReduction;
  const double expected = cosine_of(local_mean, 1 / n, 1, 1);
  EXPECT_LT(expected, 0.95);  // The factors do turn the gradient.
  // A cosine of directions at condition 1e2 per factor, from sums of up to 8 n terms.
  const double tolerance = 100 * 8 * n * eps<double>;
  for (const double copies : {2.0, 8.0}) {
    const auto count = static_cast<std::int64_t>(copies);
    EXPECT_NEAR(cosine_of(local_mean, 1 / (copies * n), count, 1), expected, tolerance);
    EXPECT_NEAR(cosine_of(global_mean, 1 / (copies * n), count, 1), expected, tolerance);
    EXPECT_NEAR(cosine_of(sum, 1, count, 1), expected, tolerance);
    EXPECT_NEAR(cosine_of(sum, 1024, count, 1024), expected, tolerance);
    // Control: treating a mean as a sum makes G smaller by the square of the batch.
    const double wrong = cosine_of(sum, 1 / (copies * n), count, 1);
    EXPECT_GT(wrong, expected + 0.01);
  }
}

TEST(PeerFailures, DampingNeverEntersTheAverage) {
  for (const kfac::InverseMethod method : kMethods) {
    // Statistics once, inverses a hundred times.
    kfac::CurvatureOptions once = curvature(method);
    once.refresh.statistics_interval = 1000;
    OneLayer layer(once);
    (void)layer.step();
    const Weights first = layer.averages();
    for (int refresh = 0; refresh < 100; ++refresh) {
      layer.preconditioner.set_damping(refresh % 2 == 0 ? 0.1 : 0.2);
      (void)layer.step();
    }
    EXPECT_EQ(layer.averages(), first);
    // Both a hundred times on constant data: damping leaves no trace in the average.
    kfac::CurvatureOptions weak = curvature(method), strong = curvature(method);
    weak.damping = 1e-8;
    strong.damping = 0.1;
    OneLayer damped_little(weak), damped_much(strong);
    Weights little, much;
    for (int refresh = 0; refresh < 100; ++refresh) {
      little = damped_little.step();
      much = damped_much.step();
    }
    EXPECT_EQ(damped_much.averages(), damped_little.averages());
    EXPECT_TRUE(near(damped_much.averages(), statistics_of(layer), 400 * eps<double>));
    EXPECT_FALSE(near(much, little, 0.1));  // Control: it does enter the inverses.
  }
}

}  // namespace
}  // namespace dkfac::testing
