#include <gtest/gtest.h>

#include "nn/nn_support.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

ConvOptions frozen(bool bias) {
  ConvOptions o = ConvOptions::square(3, {.pad = 1, .bias = bias});
  o.frozen = true;
  return o;
}

/// Counts the observer calls.
struct Counter final : LayerObserver {
  int calls = 0;
  void on_forward(Layer&, ConstTensorView) override { ++calls; }
  void on_backward(Layer&, ConstTensorView) override { ++calls; }
  void on_normalization(Layer&, ConstTensorView, ConstTensorView, ConstTensorView,
                        ConstTensorView) override {
    ++calls;
  }
  void on_gradients(Layer&) override { ++calls; }
};

TEST(FrozenConv, ComputesWhatATrainedOneOfTheSameSeedDoes) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    for (const bool bias : {false, true}) {
      Context ctx;
      Standalone<Conv2d> fixed(ctx, dtype, 3, 8, frozen(bias));
      Standalone<Conv2d> trained(ctx, dtype, 3, 8,
                                 ConvOptions::square(3, {.pad = 1, .bias = bias}));
      EXPECT_EQ(fixed->parameters().size(), bias ? 1 : 0);
      ASSERT_EQ(fixed->buffers().size(), 1);
      EXPECT_EQ(fixed->buffers()[0].name, "weight");
      EXPECT_EQ(values(ctx, fixed->buffers()[0].value), values(ctx, trained.value(0)));
      if (bias) ops::fill(ctx, fixed.value(0), 0.5);
      if (bias) ops::fill(ctx, trained.value(1), 0.5);

      const Tensor x = random_tensor(ctx, Shape{2, 6, 5, 3}, dtype, 1);
      const Tensor dy = random_tensor(ctx, Shape{2, 6, 5, 8}, dtype, 2);
      EXPECT_EQ(values(ctx, fixed->forward(ctx, x, Mode::train)),
                values(ctx, trained->forward(ctx, x, Mode::train)));
      EXPECT_EQ(values(ctx, fixed->backward(ctx, dy, InputGrad::needed)),
                values(ctx, trained->backward(ctx, dy, InputGrad::needed)));
      // c = 2, n = 60 positions.
      const double e = 2 * 60 * (dtype == DType::f64 ? eps<double> : eps<float>);
      if (bias) {
        EXPECT_TRUE(near(values(ctx, fixed.grad(0)), values(ctx, trained.grad(1)), e));
      }
    }
  }
}

TEST(FrozenConv, NotifiesItsObserverOfABiasAlone) {
  for (const bool bias : {false, true}) {
    Context ctx;
    Standalone<Conv2d> conv(ctx, DType::f32, 2, 4, frozen(bias));
    Counter counter;
    conv->set_observer(&counter);
    const Tensor x = random_tensor(ctx, Shape{1, 4, 4, 2}, DType::f32, 1);
    const Tensor dy = random_tensor(ctx, Shape{1, 4, 4, 4}, DType::f32, 2);
    conv->forward(ctx, x, Mode::train);
    conv->backward(ctx, dy, InputGrad::skipped);
    EXPECT_EQ(counter.calls, bias ? 3 : 0);
  }
}

TEST(FrozenConv, NeedsMemoryForItsWeight) {
  Context ctx;
  Conv2d conv(1, 1, frozen(false));
  const Tensor x = Tensor::zeros(ctx, Shape{1, 3, 3, 1});
  EXPECT_TRUE(contains(message_of([&] { conv.forward(ctx, x, Mode::eval); }), "bind_standalone()"));
}

TEST(FrozenConv, GradientsMatchDifferences) {
  Context ctx;
  Standalone<Conv2d> conv(ctx, DType::f64, 2, 3, frozen(true));
  const Tensor x = random_tensor(ctx, Shape{2, 5, 4, 2}, DType::f64, 1);
  const GradientCheckResult result = check_gradients(ctx, conv.layer, x);
  EXPECT_LE(result.worst, kGradientTolerance) << result.where;
}

}  // namespace
}  // namespace dkfac::nn
