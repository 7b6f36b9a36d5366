#include "kfac/precondition/averaged_gradients.h"

#include <array>
#include <cmath>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/kfac/preconditioner.h"

#include "support/natural_gradient.h"
#include "support/tensors.h"

// Three ranks over five linear layers, whose statistics are of one matrix.
namespace dkfac::testing {
namespace {

constexpr int kRanks = 3;
constexpr std::size_t kLayers = 5;
constexpr std::int64_t kInputs = 5, kOutputs = 4;
using Gradients = std::array<std::vector<double>, kLayers>;

Gradients gradients() {
  Gradients all;
  for (std::size_t layer = 0; layer < kLayers; ++layer)
    for (int i = 0; i < kInputs * kOutputs; ++i)
      all[layer].push_back(std::sin(0.7 * i + static_cast<double>(layer)));
  return all;  // Between -1 and 1.
}

struct Loop {
  explicit Loop(std::shared_ptr<comm::Communicator> comm, bool keeps_first = false)
      : kfac(std::move(comm), options()) {
    for (std::size_t i = 0; i < kLayers; ++i)
      layers.push_back(kfac.add_layer(std::to_string(i), LinearSpec{kInputs, kOutputs, false}));
    if (keeps_first) kfac.keep_direction(layers.front());
  }
  static kfac::CurvatureOptions options() {
    kfac::CurvatureOptions options = natural_gradient();
    options.dtype = DType::f64;
    return options;
  }
  /// Preconditions them in place.
  kfac::StepReport step(Gradients& all) {
    std::vector<double> x, dy;
    for (int i = 0; i < 8 * kInputs; ++i) x.push_back(std::cos(0.3 * i * i));
    for (int i = 0; i < 8 * kOutputs; ++i) dy.push_back(std::sin(1.1 * i * i));
    std::vector<kfac::LayerGrad> grads;
    for (std::size_t i = kLayers; i-- > 0;) {  // Their order is the caller's.
      kfac.record_input(layers[i], view_of(x.data(), {8, kInputs}));
      kfac.record_grad_output(layers[i], view_of(dy.data(), {8, kOutputs}));
      grads.push_back({layers[i], view_of(all[i].data(), {kOutputs, kInputs}), {}});
    }
    return kfac.step(grads);
  }
  kfac::Preconditioner kfac;
  std::vector<LayerId> layers;
};

/// What each rank is told where one of them has this added to an element of a layer.
std::vector<std::string> told(std::size_t layer, double added, bool kept = false) {
  std::vector<std::string> messages(kRanks);
  comm::run_ranks(kRanks, [&](auto comm) {
    Loop loop(comm, kept);
    Gradients mine = gradients();
    if (comm->rank() == 1) mine[layer][0] += added;
    messages[static_cast<std::size_t>(comm->rank())] = message_of([&] { loop.step(mine); });
  });
  return messages;
}

TEST(AveragedGradients, AreRequiredOnAllRanks) {
  for (const std::size_t layer : {0U, 1U, 3U, 4U})
    for (const double added : {3.0, -3.0, 2e-3})
      for (const std::string& message : told(layer, added)) {
        EXPECT_TRUE(contains(message, "gradients differ between the 3 ranks"));
        EXPECT_TRUE(contains(message, "of layer '" + std::to_string(layer) + "'"));
        EXPECT_TRUE(contains(message, "average them over the ranks"));
      }
}

TEST(AveragedGradients, MayBeSumsInAnotherOrder) {
  for (const std::string& message : told(0, 9e-4)) EXPECT_EQ(message, "");
}

TEST(AveragedGradients, AreNotRequiredOfLayersThatOneRankUpdates) {
  for (const std::string& message : told(0, 3.0, true)) EXPECT_EQ(message, "");
}

TEST(AveragedGradients, AreOfTheShiftWhereANormalisationHasNoScale) {
  comm::run_ranks(kRanks, [](auto comm) {
    kfac::Preconditioner kfac(comm, Loop::options());
    const LayerId norm = kfac.add_layer("norm", NormSpec{.channels = 2, .scale = false});
    const std::vector<double> x{1, -1, 2, 0.5}, mean(2), inv_std(2, 1.0);
    kfac.record_normalization(norm, view_of(x.data(), {2, 2}), view_of(mean.data(), {2}),
                              view_of(inv_std.data(), {2}), view_of(x.data(), {2, 2}));
    std::vector<double> shift{1.0, 1.0 + comm->rank()};
    const kfac::LayerGrad grad{norm, {}, view_of(shift.data(), {2})};
    EXPECT_TRUE(contains(message_of([&] { (void)kfac.step({&grad, 1}); }), "of layer 'norm'"));
  });
}

TEST(AveragedGradients, OfZerosTellNothing) {
  comm::run_ranks(kRanks, [](auto comm) {
    Loop loop(comm);
    Gradients zeros;
    zeros.fill(std::vector<double>(kInputs * kOutputs));
    for (int step = 0; step < 3; ++step) EXPECT_TRUE(loop.step(zeros).updated);
    Gradients mine = gradients();
    mine[4][0] += comm->rank();
    EXPECT_TRUE(contains(message_of([&] { loop.step(mine); }), "of layer '4'"));
  });
}

TEST(AveragedGradients, ThatAreMissingLeaveEverythingElseAsItWas) {
  comm::run_ranks(kRanks, [](auto comm) {
    Loop failed(comm), other(comm);
    Gradients mine = gradients();
    mine[0][0] += comm->rank();
    const Gradients before = mine;
    EXPECT_NE(message_of([&] { failed.step(mine); }), "");
    EXPECT_EQ(mine, before);
    for (int step = 0; step < 3; ++step) {
      Gradients one = gradients(), two = gradients();
      EXPECT_TRUE(failed.step(one).updated);
      EXPECT_TRUE(other.step(two).updated);
      EXPECT_EQ(one, two);
      EXPECT_NE(one, gradients());
    }
  });
}

}  // namespace
}  // namespace dkfac::testing
