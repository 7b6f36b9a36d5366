#include <cmath>

#include <gtest/gtest.h>

#include "dkfac/nn/loss.h"
#include "dkfac/nn/model.h"

#include "nn/nn_support.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

struct Lesson {
  const char* name;
  Shape image;
  std::int64_t batch, width;
  int steps;
  double lr;
};

std::string name_of(const ::testing::TestParamInfo<Lesson>& info) {
  std::string name = info.param.name;
  std::erase(name, '-');
  return name;
}

class Learning : public ::testing::TestWithParam<Lesson> {};

/// Mean losses of steepest descent on one batch.
std::vector<double> descend(Context& ctx, Model& model, const Lesson& lesson, double lr) {
  const Shape& image = lesson.image;
  const Tensor x =
      random_tensor(ctx, Shape{lesson.batch, image[0], image[1], image[2]}, DType::f32, 1);
  std::vector<std::int32_t> labels;
  for (std::int32_t i = 0; i < lesson.batch; ++i) labels.push_back(i % 4);
  Tensor grad = Tensor::empty(ctx, Shape{lesson.batch, 4});
  const double share = 1.0 / static_cast<double>(lesson.batch);
  std::vector<double> losses;
  for (int step = 0; step <= lesson.steps; ++step) {
    const ConstTensorView logits = model.forward(ctx, x, Mode::train);
    losses.push_back(softmax_cross_entropy(ctx, logits, labels, 0, share, grad).loss * share);
    model.backward(ctx, grad);
    ops::axpby(ctx, -lr, model.gradients(), 1.0, model.parameters());
  }
  return losses;
}

TEST_P(Learning, SteepestDescentLowersTheLossOfOneBatch) {
  Context ctx;
  const Lesson& lesson = GetParam();
  const ModelOptions options{
      .name = lesson.name, .input = lesson.image, .classes = 4, .width = lesson.width};
  const auto model = make_model(ctx, options);
  const std::vector<double> losses = descend(ctx, *model, lesson, lesson.lr);
  for (const double loss : losses) EXPECT_TRUE(std::isfinite(loss));
  EXPECT_LT(losses.back(), 0.7 * losses.front());
  for (const double v : values(ctx, model->parameters())) ASSERT_TRUE(std::isfinite(v));
  // Without steps the same batch keeps its loss: the fall above is learning.
  const auto still = make_model(ctx, options);
  const std::vector<double> same = descend(ctx, *still, lesson, 0.0);
  EXPECT_EQ(same.back(), same.front());
}

INSTANTIATE_TEST_SUITE_P(Models, Learning,
                         ::testing::Values(Lesson{"resnet20", {16, 16, 3}, 8, 0, 12, 0.05},
                                           Lesson{"resnet32", {16, 16, 3}, 8, 8, 12, 0.05},
                                           Lesson{"resnet9", {16, 16, 3}, 8, 8, 12, 0.5},
                                           Lesson{"resnet9-plain", {16, 16, 3}, 8, 8, 12, 0.2},
                                           Lesson{"resnet18", {32, 32, 3}, 4, 16, 8, 0.02},
                                           Lesson{"resnet50", {32, 32, 3}, 4, 16, 8, 0.02}),
                         name_of);

}  // namespace
}  // namespace dkfac::nn
