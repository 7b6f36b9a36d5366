#include <cmath>

#include <gtest/gtest.h>

#include "dkfac/comm/communicator.h"
#include "dkfac/nn/kfac_attach.h"
#include "dkfac/nn/loss.h"

#include "nn/nn_support.h"
#include "support/natural_gradient.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

struct Lesson {
  const char* name;
  Shape image;
  std::int64_t batch, width;
  double lr;
};

std::string name_of(const ::testing::TestParamInfo<Lesson>& info) {
  std::string name = info.param.name;
  std::erase(name, '-');
  return name;
}

constexpr std::int64_t kClasses = 4;
constexpr int kSteps = 10;

class Learning : public ::testing::TestWithParam<Lesson> {
 protected:
  [[nodiscard]] std::unique_ptr<Model> make(std::optional<DType> compute = {}) {
    return make_model(ctx, {.name = GetParam().name,
                            .input = GetParam().image,
                            .classes = kClasses,
                            .compute = compute,
                            .width = GetParam().width});
  }

  /// Mean losses on one batch that is seen again and again, and the one after the last update.
  std::vector<double> learn(Model& model, optim::Optimizer& optimizer, double lr) {
    const Shape& image = GetParam().image;
    const std::int64_t batch = GetParam().batch;
    OptimizerAttachment attachment(model, optimizer);
    optimizer.prepare();
    const Tensor x = random_tensor(ctx, {batch, image[0], image[1], image[2]}, DType::f32, 1);
    std::vector<std::int32_t> labels;
    for (std::int32_t i = 0; i < batch; ++i)
      labels.push_back(static_cast<std::int32_t>(i % kClasses));
    Tensor grad = Tensor::empty(ctx, Shape{batch, kClasses});
    const double share = 1.0 / static_cast<double>(batch);
    std::vector<double> losses;
    for (int step = 0; step <= kSteps; ++step) {
      const ConstTensorView logits = model.forward(ctx, x, Mode::train);
      losses.push_back(softmax_cross_entropy(ctx, logits, labels, 0, share, grad).loss * share);
      model.backward(ctx, grad);
      EXPECT_TRUE(optimizer.step({.lr = lr, .flags = {}}, Stream::cpu()).updated);
    }
    for (const double v : values(ctx, model.parameters())) {
      if (!std::isfinite(v)) ADD_FAILURE() << "a weight is " << v;
    }
    return losses;
  }

  static std::unique_ptr<optim::Optimizer> sgd() {
    return optim::make_sgd(comm::make_self(), {.momentum = 0});
  }

  Context ctx;
};

TEST_P(Learning, SteepestDescentLowersTheLossOfOneBatch) {
  const auto model = make();
  const std::vector<double> losses = learn(*model, *sgd(), GetParam().lr);
  EXPECT_LT(losses.back(), 0.7 * losses.front());
  // Without steps the same batch keeps its loss: the fall above is learning.
  const auto still = make();
  const std::vector<double> same = learn(*still, *sgd(), 0.0);
  EXPECT_EQ(same.back(), same.front());
}

TEST_P(Learning, ActivationsIn16BitsLearnAsWell) {
  const auto model = make(DType::bf16);
  const std::vector<double> losses = learn(*model, *sgd(), GetParam().lr);
  EXPECT_LT(losses.back(), 0.7 * losses.front());
}

TEST_P(Learning, KfacLowersTheLossOfOneBatch) {
  const auto model = make();
  optim::KfacOptions options{.curvature = natural_gradient()};
  options.momentum = 0;
  options.curvature.damping = 0.1;
  options.curvature.refresh.inverse_interval = 5;
  const auto kfac = optim::make_kfac(comm::make_self(), options);
  const std::vector<double> losses = learn(*model, *kfac, GetParam().lr);
  EXPECT_LT(losses.back(), 0.7 * losses.front());
}

INSTANTIATE_TEST_SUITE_P(Models, Learning,
                         ::testing::Values(Lesson{"resnet20", {16, 16, 3}, 8, 0, 0.05},
                                           Lesson{"resnet32", {16, 16, 3}, 8, 8, 0.05},
                                           Lesson{"resnet9", {16, 16, 3}, 8, 8, 0.5},
                                           Lesson{"resnet9-plain", {16, 16, 3}, 8, 8, 0.2},
                                           Lesson{"resnet18", {32, 32, 3}, 4, 16, 0.02},
                                           Lesson{"resnet50", {32, 32, 3}, 4, 16, 0.02}),
                         name_of);

}  // namespace
}  // namespace dkfac::nn
