#include <gtest/gtest.h>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/threads.h"
#include "dkfac/nn/kfac_attach.h"
#include "dkfac/nn/loss.h"

#include "core/shared/parallel.h"
#include "nn/nn_support.h"
#include "support/natural_gradient.h"
#include "support/signal_storm.h"

/// A foreign signal handler may run at any point of a training step.
namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

constexpr int kThreads = 2;
constexpr std::int64_t kSignals = 500;  ///< Over all threads.

class UnderSignals : public ::testing::Test {
 protected:
  UnderSignals() { set_threads(kThreads); }
  ~UnderSignals() override { set_threads(before_); }

  /// Calls body() until enough signals have arrived, which must not change its results.
  template <class Body>
  void expect_the_same(Body&& body) {
    const std::vector<double> expected = body();
    SignalStorm storm;
    cpu::parallel_parts(kThreads, [&](int) { storm.meet_this_thread(); });
    while (SignalStorm::taken() < kSignals) {
      ASSERT_EQ(body(), expected);
      ASSERT_EQ(SignalStorm::off_stack(), 0);
    }
  }

 private:
  const int before_ = threads();
};

class StepsUnderSignals : public UnderSignals, public ::testing::WithParamInterface<const char*> {};

TEST_P(StepsUnderSignals, OfKfacKeepTheirBitsAndTheHeap) {
  constexpr std::int64_t kBatch = 64, kClasses = 10;
  std::vector<std::int32_t> labels;
  for (std::int32_t i = 0; i < kBatch; ++i) labels.push_back(i * 7 % kClasses);
  expect_the_same([&] {
    Context ctx;
    const auto model =
        make_model(ctx, {.name = GetParam(), .input = {16, 16, 3}, .classes = kClasses});
    optim::KfacOptions options{.curvature = natural_gradient()};
    options.curvature.damping = 1e-2;
    const auto optimizer = optim::make_kfac(comm::make_self(), options);
    OptimizerAttachment attachment(*model, *optimizer);
    optimizer->prepare();
    const Tensor x = random_tensor(ctx, {kBatch, 16, 16, 3}, DType::f32, 1);
    Tensor grad = Tensor::empty(ctx, Shape{kBatch, kClasses});
    for (int step = 0; step < 2; ++step) {
      const ConstTensorView logits = model->forward(ctx, x, Mode::train);
      softmax_cross_entropy(ctx, logits, labels, 0, 1.0 / kBatch, grad);
      model->backward(ctx, grad);
      EXPECT_TRUE(optimizer->step({.lr = 0.01, .flags = {}}, Stream::cpu()).updated);
    }
    return values(ctx, model->parameters());
  });
}

std::string name_of(const ::testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  std::erase(name, '-');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Models, StepsUnderSignals,
                         ::testing::Values("mlp", "lenet-bn", "resnet20"), name_of);

/// oneDNN would compute these by products of matrices on threads of its own.
TEST_F(UnderSignals, DilatedConvolutionsKeepTheirBitsAndTheHeap) {
  Context ctx;
  ConvOptions options = ConvOptions::square(5, {.pad = 4});
  options.window.dilation_h = options.window.dilation_w = 2;
  Standalone<Conv2d> conv(ctx, DType::f32, 12, 20, options);
  const Tensor x = random_tensor(ctx, {4, 24, 24, 12}, DType::f32, 1);
  const Tensor dy = random_tensor(ctx, {4, 24, 24, 20}, DType::f32, 2);
  expect_the_same([&] {
    std::vector<double> all = values(ctx, conv->forward(ctx, x, Mode::train));
    const auto dx = values(ctx, conv->backward(ctx, dy, InputGrad::needed));
    const auto dw = values(ctx, conv.grad(0));
    all.insert(all.end(), dx.begin(), dx.end());
    all.insert(all.end(), dw.begin(), dw.end());
    return all;
  });
}

}  // namespace
}  // namespace dkfac::nn
