#include <atomic>
#include <cstdlib>
#include <new>

#include <gtest/gtest.h>

#include "dkfac/nn/loss.h"
#include "dkfac/nn/model.h"

#include "nn/nn_support.h"
#include "nn/residual_net.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<std::int64_t> allocations{0}, largest{0};

void count(std::size_t bytes) {
  if (!counting) return;
  ++allocations;
  const auto size = static_cast<std::int64_t>(bytes);
  std::int64_t seen = largest;
  while (seen < size && !largest.compare_exchange_weak(seen, size)) {
  }
}

void* allocate(std::size_t bytes) {
  count(bytes);
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}

}  // namespace

// The whole program's allocations pass through here, those of the libraries it calls included.
void* operator new(std::size_t bytes) { return allocate(bytes); }
void* operator new[](std::size_t bytes) { return allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
// Tensors.
extern "C" void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
  count(bytes);
  void* memory = nullptr;
  return posix_memalign(&memory, alignment, bytes) == 0 ? memory : nullptr;
}

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

/// What one training step took from the heap and the scratch memory.
struct Use {
  std::int64_t allocations = 0, largest = 0, growths = 0;
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
    allocations = largest = 0;
    counting = step == 3;
    const ConstTensorView logits = model.forward(ctx, x, Mode::train);
    softmax_cross_entropy(ctx, logits, labels, 0.1, 1, grad);
    model.backward(ctx, grad);
    model.forward(ctx, few, Mode::eval);
    counting = false;
  }
  return {allocations, largest, ctx.scratch_growths() - growths};
}

Use steady_step(Backend backend, DType dtype) {
  Context ctx(Device::cpu(), {.backend = backend});
  const auto model = make_model(ctx, {.name = "lenet-bn", .dtype = dtype});
  return steady_step(ctx, *model);
}

TEST(SteadyStep, AllocatesNothingOnTheReferenceBackend) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const Use use = steady_step(Backend::reference, dtype);
    EXPECT_EQ(use.allocations, 0) << use.largest;
    EXPECT_EQ(use.growths, 0);
  }
}

TEST(SteadyStep, AllocatesNoTensorsOnTheFastBackend) {
  // oneDNN lists its arguments on the heap in each call; no such list has 4 KiB, the smallest
  // activation has more.
  for (const DType dtype : {DType::f32, DType::f64}) {
    const Use use = steady_step(Backend::fast, dtype);
    EXPECT_LT(use.largest, 4096);
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
      // Lists of arguments, as above.
      EXPECT_LT(use.largest, backend == Backend::fast ? 4096 : 1) << compute.value_or(DType::f32);
      EXPECT_EQ(use.growths, 0);
    }
  }
}

TEST(SteadyStep, TheCountersSeeAnAllocation) {
  allocations = largest = 0;
  counting = true;
  const auto memory = std::make_unique<std::vector<char>>(5000);
  counting = false;
  EXPECT_EQ(allocations, 2);
  EXPECT_EQ(largest, 5000);

  Context ctx;
  counting = true;
  const Tensor tensor = Tensor::empty(ctx, Shape{64, 64});
  counting = false;
  EXPECT_EQ(allocations, 3);
  EXPECT_EQ(largest, 16384);
}

}  // namespace
}  // namespace dkfac::nn
