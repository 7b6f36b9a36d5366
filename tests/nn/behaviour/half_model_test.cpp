#include <gtest/gtest.h>

#include "dkfac/comm/communicator.h"
#include "dkfac/nn/kfac_attach.h"
#include "dkfac/nn/loss.h"
#include "dkfac/optim/optimizer.h"

#include "nn/nn_support.h"
#include "nn/residual_net.h"
#include "support/natural_gradient.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

struct Step {
  std::vector<double> logits, gradients;
  double loss = 0;
};

Step train(Context& ctx, Model& model, const Tensor& x) {
  const std::vector<std::int32_t> labels{0, 1, 2, 3, 4, 5, 6, 7};
  Tensor grad = Tensor::empty(ctx, Shape{8, 10}, model.dtype());
  const ConstTensorView logits = model.forward(ctx, x, Mode::train);
  EXPECT_EQ(logits.dtype(), model.dtype());
  Step step{values(ctx, logits), {}, 0};
  step.loss = softmax_cross_entropy(ctx, logits, labels, 0.1, 1.0 / 8, grad).loss;
  model.backward(ctx, grad);
  step.gradients = values(ctx, model.gradients());
  return step;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

TEST(MixedPrecision, StaysNearSinglePrecisionAsFarAsItsDigitsGo) {
  Context ctx;
  const Tensor x = random_tensor(ctx, Shape{8, 12, 12, 3}, DType::f32, 1);
  const auto single = residual_net(ctx, DType::f32, {});
  const Step expected = train(ctx, *single, x);
  // About ten roundings in a row of 2^-9 and 2^-12, amplified by normalisation; c = 64 and 256.
  for (const auto& [compute, tolerance] :
       {std::pair{DType::bf16, 64 * 0x1p-9 * 2}, {DType::f16, 64 * 0x1p-12 * 2}}) {
    const auto mixed = residual_net(ctx, DType::f32, compute);
    EXPECT_EQ(mixed->parameters().dtype(), DType::f32);
    const Step step = train(ctx, *mixed, x);
    EXPECT_LT(distance(step.logits, expected.logits), tolerance) << compute;
    EXPECT_LT(distance(step.gradients, expected.gradients), tolerance) << compute;
    EXPECT_GT(distance(step.logits, expected.logits), 0) << compute;
    EXPECT_NE(mixed->summary().find(std::string(name_of(compute))), std::string::npos);
  }
}

TEST(MixedPrecision, TakesInputsOfEitherDtype) {
  Context ctx;
  const auto model = residual_net(ctx, DType::f32, DType::bf16);
  const Tensor x = random_tensor(ctx, Shape{8, 12, 12, 3}, DType::f32, 1);
  Tensor half = Tensor::empty(ctx, x.shape(), DType::bf16);
  ops::cast(ctx, x, half);
  EXPECT_EQ(values(ctx, model->forward(ctx, x, Mode::eval)),
            values(ctx, model->forward(ctx, half, Mode::eval)));
  const Tensor wide = Tensor::zeros(ctx, x.shape(), DType::f64);
  EXPECT_TRUE(contains(message_of([&] { model->forward(ctx, wide, Mode::eval); }), "cast it"));
}

TEST(MixedPrecision, RefusesDtypesThatDoNotGoTogether) {
  Context ctx;
  EXPECT_THROW(residual_net(ctx, DType::f64, DType::bf16), InvalidArgument);
  EXPECT_THROW(residual_net(ctx, DType::f64, DType::f32), InvalidArgument);
  EXPECT_THROW(residual_net(ctx, DType::f32, DType::f64), InvalidArgument);
  EXPECT_THROW(residual_net(ctx, DType::f32, DType::i32), InvalidArgument);
}

/// Keeps the dtypes that layers hand to their observer.
class DtypeKeeper final : public LayerObserver {
 public:
  void on_forward(Layer&, ConstTensorView x) override { ok = ok && x.dtype() == DType::bf16; }
  void on_backward(Layer&, ConstTensorView g) override { ok = ok && g.dtype() == DType::bf16; }
  void on_normalization(Layer&, ConstTensorView x, ConstTensorView mean, ConstTensorView inv_std,
                        ConstTensorView g) override {
    ok = ok && x.dtype() == DType::bf16 && g.dtype() == DType::bf16;
    ok = ok && mean.dtype() == DType::f32 && inv_std.dtype() == DType::f32;
  }
  void on_gradients(Layer& layer) override {
    ok = ok && layer.parameters()[0].grad.dtype() == DType::f32;
  }
  bool ok = true;
};

TEST(MixedPrecision, ObserversSeeActivationsOf16BitsAndStatisticsOf32) {
  Context ctx;
  const auto model = residual_net(ctx, DType::f32, DType::bf16);
  DtypeKeeper keeper;
  model->set_observer(&keeper);
  const Tensor x = random_tensor(ctx, Shape{8, 12, 12, 3}, DType::f32, 1);
  train(ctx, *model, x);
  EXPECT_TRUE(keeper.ok);
  // Memory that is taken for the observer is released.
  const std::size_t held = model->allocated_bytes();
  for (int step = 0; step < 3; ++step) train(ctx, *model, x);
  EXPECT_EQ(model->allocated_bytes(), held);
}

TEST(MixedPrecision, KfacUpdatesLikeInSinglePrecision) {
  Context ctx;
  const Tensor x = random_tensor(ctx, Shape{8, 12, 12, 3}, DType::f32, 1);
  const auto update = [&](std::optional<DType> compute) {
    const auto model = residual_net(ctx, DType::f32, compute);
    const auto optimizer = optim::make_kfac(comm::make_self(), {.curvature = natural_gradient()});
    OptimizerAttachment attachment(*model, *optimizer);
    optimizer->prepare();
    attachment.set_scale({.global_batch = 8});
    const auto before = values(ctx, model->parameters());
    train(ctx, *model, x);
    EXPECT_TRUE(optimizer->step({.lr = 0.1, .flags = {}}, Stream::cpu()).updated);
    auto after = values(ctx, model->parameters());
    for (std::size_t i = 0; i < after.size(); ++i) after[i] -= before[i];
    return after;
  };
  const auto expected = update({});
  EXPECT_LT(distance(update(DType::bf16), expected), 64 * 0x1p-9 * 2);
  EXPECT_LT(distance(update(DType::f16), expected), 64 * 0x1p-12 * 2);
}

}  // namespace
}  // namespace dkfac::nn
