#include "nn/shared/memory.h"

#include <limits>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "dkfac/nn/loss.h"

#include "nn/nn_support.h"
#include "nn/residual_net.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

void train_step(Context& ctx, Model& model, std::int64_t batch) {
  const Shape& s = model.input();
  const Tensor x = random_tensor(ctx, Shape{batch, s[0], s[1], s[2]}, model.dtype(), 1);
  const std::vector<std::int32_t> labels(static_cast<std::size_t>(batch), 3);
  Tensor grad = Tensor::empty(ctx, Shape{batch, model.outputs()}, model.dtype());
  const ConstTensorView logits = model.forward(ctx, x, Mode::train);
  softmax_cross_entropy(ctx, logits, labels, 0, 1, grad);
  model.backward(ctx, grad);
}

/// Ratio of allocated to planned memory.
double ratio(const Model& model, const MemoryPlan& plan) {
  return static_cast<double>(model.allocated_bytes()) / static_cast<double>(plan.held());
}

void expect_plan(Context& ctx, Model& model) {
  const MemoryPlan plan = plan_memory(model, 32, Mode::train);
  EXPECT_EQ(plan.parameters, model.parameters().bytes());
  EXPECT_EQ(plan.buffers, model.buffers().bytes());
  train_step(ctx, model, 32);
  EXPECT_LE(ratio(model, plan), 1.2) << describe(plan);
  EXPECT_GE(ratio(model, plan), 0.8) << describe(plan);
  const std::size_t held = model.allocated_bytes();
  train_step(ctx, model, 32);
  EXPECT_EQ(model.allocated_bytes(), held);
  // Control: the plan of another batch size is different.
  EXPECT_GT(ratio(model, plan_memory(model, 20, Mode::train)), 1.2);
}

TEST(MemoryPlan, IsWhatATrainingStepOfLeNetHolds) {
  Context ctx;
  for (const DType dtype : {DType::f32, DType::f64}) {
    const auto model = make_model(ctx, {.name = "lenet-bn", .dtype = dtype});
    expect_plan(ctx, *model);
  }
}

TEST(MemoryPlan, IsWhatATrainingStepOfAResidualNetHolds) {
  Context ctx;
  for (const std::optional<DType> compute :
       {std::optional<DType>{}, std::optional(DType::bf16), std::optional(DType::f16)}) {
    const auto model = residual_net(ctx, DType::f32, compute);
    expect_plan(ctx, *model);
  }
}

TEST(MemoryPlan, CountsNoMemoryForViews) {
  Context ctx;
  auto net = std::make_unique<Sequential>();
  net->add<Relu>("relu").add<Flatten>("flatten").add<Linear>("fc", 12 * 12 * 3, 10);
  Model flat(ctx, "flat", std::move(net), Shape{12, 12, 3}, DType::f32, 1);
  for (const Mode mode : {Mode::eval, Mode::train}) {
    const MemoryPlan plan = plan_memory(flat, 32, mode);
    const std::size_t image = 32 * 12 * 12 * 3 * 4, logits = 32 * 10 * 4;
    EXPECT_EQ(plan.workspace, mode == Mode::train ? 0 : image + logits);
    EXPECT_EQ(plan.activations, mode == Mode::train ? image + logits : 0);
  }
  train_step(ctx, flat, 32);
  const MemoryPlan plan = plan_memory(flat, 32, Mode::train);
  EXPECT_LE(ratio(flat, plan), 1.05) << describe(plan);
  EXPECT_GE(ratio(flat, plan), 0.95) << describe(plan);
}

TEST(MemoryPlan, IsTheSameOfAModelThatHasNotBeenMade) {
  Context ctx;
  for (const char* name : {"mlp", "lenet-bn", "resnet9", "resnet20"}) {
    for (const std::optional<DType> compute :
         {std::optional<DType>{}, std::optional(DType::bf16)}) {
      const ModelOptions options{.name = name, .input = {32, 32, 3}, .compute = compute};
      const auto model = make_model(ctx, options);
      for (const Mode mode : {Mode::train, Mode::eval}) {
        const MemoryPlan plan = plan_memory(options, 24, mode);
        EXPECT_GT(plan.total(), plan.parameters);
        EXPECT_EQ(describe(plan), describe(plan_memory(*model, 24, mode))) << name;
      }
    }
  }
}

TEST(MemoryPlan, CountsTheStatisticsOfEveryBatchNormGroup) {
  Context ctx;
  for (const std::optional<DType> compute : {std::optional<DType>{}, std::optional(DType::bf16)}) {
    const auto taken = [&](std::int64_t groups) {
      const auto model = make_model(ctx, {.name = "resnet9",
                                          .input = Shape{32, 32, 3},
                                          .batch_norm_groups = groups,
                                          .compute = compute,
                                          .width = 2});
      train_step(ctx, *model, 16);
      const MemoryPlan plan = plan_memory(*model, 16, Mode::train);
      return std::pair(model->allocated_bytes(), plan.held());
    };
    const auto few = taken(1), many = taken(8);
    EXPECT_GT(many.first, few.first);
    EXPECT_EQ(many.second - few.second, many.first - few.first);
  }
}

TEST(MemoryPlan, EvaluationHoldsAFewActivationsOnly) {
  Context ctx;
  const auto model = residual_net(ctx, DType::f32, {});
  const MemoryPlan plan = plan_memory(*model, 32, Mode::eval);
  const Tensor x = random_tensor(ctx, Shape{32, 12, 12, 3}, DType::f32, 1);
  model->forward(ctx, x, Mode::eval);
  EXPECT_LE(ratio(*model, plan), 1.2) << describe(plan);
  EXPECT_GE(ratio(*model, plan), 0.8) << describe(plan);
  EXPECT_LT(plan.held(), plan_memory(*model, 32, Mode::train).held() / 2);
}

TEST(MemoryPlan, EvaluationBetweenTrainingStepsTakesNothingMore) {
  Context ctx;
  const auto model = residual_net(ctx, DType::f32, {});
  train_step(ctx, *model, 32);
  const std::size_t held = model->allocated_bytes();
  const Tensor x = random_tensor(ctx, Shape{32, 12, 12, 3}, DType::f32, 1);
  model->forward(ctx, x, Mode::eval);
  EXPECT_EQ(model->allocated_bytes(), held);
}

TEST(MemoryPlan, SixteenBitsHalveTheActivations) {
  Context ctx;
  const auto wide = residual_net(ctx, DType::f32, {});
  const auto narrow = residual_net(ctx, DType::f32, DType::bf16);
  const MemoryPlan a = plan_memory(*wide, 32, Mode::train);
  const MemoryPlan b = plan_memory(*narrow, 32, Mode::train);
  EXPECT_EQ(b.activations * 2, a.activations);
  EXPECT_EQ(b.workspace * 2, a.workspace);
  EXPECT_EQ(b.parameters, a.parameters);
}

TEST(MemoryPlan, RefusesAnEmptyBatchAndPrintsItself) {
  Context ctx;
  const auto model = residual_net(ctx, DType::f32, {});
  EXPECT_THROW((void)plan_memory(*model, 0, Mode::train), InvalidArgument);
  EXPECT_TRUE(contains(describe(plan_memory(*model, 4, Mode::train)), "total"));
}

TEST(MemoryPlan, RefusesSizesWhoseProductsOverflow) {
  Context ctx;
  const auto model = residual_net(ctx, DType::f32, {});
  for (const std::int64_t batch :
       {std::int64_t{1} << 47, std::int64_t{1} << 60, std::numeric_limits<std::int64_t>::max()})
    for (const Mode mode : {Mode::train, Mode::eval}) {
      const std::string message = message_of([&] { (void)plan_memory(*model, batch, mode); });
      EXPECT_TRUE(contains(message, std::to_string(batch)) && contains(message, "smaller batch"))
          << message;
    }
  // 4 * (2^62 + 1) is 4 in 64 bits.
  const std::int64_t most = (std::int64_t{1} << 62) + 1;
  EXPECT_THROW((void)Flatten().output_shape(Shape{1, 4, most}), InvalidArgument);
  auto wide = std::make_unique<Sequential>();
  wide->add<Linear>("fc", std::int64_t{1} << 40, std::int64_t{1} << 40);
  const std::string message = message_of([&] {
    (void)Model(ctx, "wide", std::move(wide), Shape{std::int64_t{1} << 40}, DType::f32, 1);
  });
  EXPECT_TRUE(contains(message, "overflows")) << message;
}

}  // namespace
}  // namespace dkfac::nn
