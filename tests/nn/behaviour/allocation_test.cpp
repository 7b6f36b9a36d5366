#include <memory>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/nn/loss.h"
#include "dkfac/nn/model.h"

#include "nn/nn_support.h"
#include "nn/residual_net.h"
#include "support/heap_count.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

/// Use of the heap and of scratch memory by one training step.
struct Use {
  std::int64_t objects = 0, tensors = 0, growths = 0;
};

/// Steps of a model and of its evaluation on another batch size; the last one is measured.
Use steady_step(Context& ctx, Model& model) {
  const Shape& s = model.input();
  const Tensor x = random_tensor(ctx, Shape{12, s[0], s[1], s[2]}, model.dtype(), 1);
  const ConstTensorView few = x.view().slice(0, 0, 5);
  const std::vector<std::int32_t> labels(12, 3);
  Tensor grad = Tensor::empty(ctx, Shape{12, 10}, model.dtype());
  std::int64_t growths = 0;
  for (int step = 0; step < 4; ++step) {
    growths = ctx.scratch_growths();
    heap::start_count();
    const ConstTensorView logits = model.forward(ctx, x, Mode::train);
    softmax_cross_entropy(ctx, logits, labels, 0.1, 1, grad);
    model.backward(ctx, grad);
    model.forward(ctx, few, Mode::eval);
    heap::stop_count();
  }
  return {heap::objects, heap::tensors, ctx.scratch_growths() - growths};
}

Use steady_step(Backend backend, DType dtype) {
  Context ctx(Device::cpu(), {.backend = backend});
  const auto model = make_model(ctx, {.name = "lenet-bn", .dtype = dtype});
  return steady_step(ctx, *model);
}

TEST(SteadyStep, AllocatesNothingOnTheReferenceBackend) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const Use use = steady_step(Backend::reference, dtype);
    EXPECT_EQ(use.objects, 0);
    EXPECT_EQ(use.tensors, 0);
    EXPECT_EQ(use.growths, 0);
  }
}

TEST(SteadyStep, AllocatesNoTensorsOnTheFastBackend) {
  // oneDNN lists its arguments on the heap in each call.
  for (const DType dtype : {DType::f32, DType::f64}) {
    const Use use = steady_step(Backend::fast, dtype);
    EXPECT_EQ(use.tensors, 0);
    EXPECT_EQ(use.growths, 0);
  }
}

TEST(SteadyStep, AllocatesNothingInFusedResidualBlocksAndIn16Bits) {
  for (const std::optional<DType> compute :
       {std::optional<DType>{}, std::optional(DType::bf16), std::optional(DType::f16)}) {
    for (const Backend backend : {Backend::reference, Backend::fast}) {
      Context ctx(Device::cpu(), {.backend = backend});
      const auto model = residual_net(ctx, DType::f32, compute);
      const Use use = steady_step(ctx, *model);
      if (backend == Backend::reference) {
        EXPECT_EQ(use.objects, 0) << compute.value_or(DType::f32);
      }
      EXPECT_EQ(use.tensors, 0) << compute.value_or(DType::f32);
      EXPECT_EQ(use.growths, 0);
    }
  }
}

TEST(SteadyStep, TheCountersSeeAnAllocation) {
  Context ctx;
  heap::start_count();
  const auto memory = std::make_unique<std::vector<char>>(5000);
  heap::stop_count();
  EXPECT_EQ(heap::objects, 2);
  EXPECT_EQ(heap::tensors, 0);

  heap::start_count();
  const Tensor tensor = Tensor::empty(ctx, Shape{2, 2});
  heap::stop_count();
  EXPECT_EQ(heap::tensors, 1) << "however small";
}

}  // namespace
}  // namespace dkfac::nn
