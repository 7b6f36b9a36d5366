#include <cstddef>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "dkfac/core/context.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/tensor.h"

#include "support/host_waits.h"
#include "support/on_device.h"

// The emulated device, under AddressSanitizer, detects accesses of a kernel outside its memory.
// Here work of the device is a function of the host, which only an emulated device lets access its
// memory.
namespace dkfac {
namespace {

struct Access {
  const volatile double* at;
  double found;
};

/// Reads one element as work of the device, and waits for it.
void read(Context& ctx, const double* at) {
  Access access{at, 0};
  ASSERT_EQ(cudaLaunchHostFunc(
                ctx.stream().native(),
                [](void* data) {
                  auto* what = static_cast<Access*>(data);
                  what->found = *what->at;
                },
                &access),
            cudaSuccess);
  ctx.stream().synchronize();
}

class StrayAccessDeathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::ends_at_stray_reads()) GTEST_SKIP() << "seen by AddressSanitizer only";
    GTEST_FLAG_SET(death_test_style, "threadsafe");
  }
};

/// A block of 7 numbers; those of tensors are rounded up to 64 bytes.
double* seven(Context& ctx) {
  void* block = nullptr;
  EXPECT_EQ(cudaMallocAsync(&block, 7 * sizeof(double), ctx.stream().native()), cudaSuccess);
  return static_cast<double*>(block);
}

TEST_F(StrayAccessDeathTest, ReadsAroundABlockAreSeen) {
  Context ctx(Device::cuda());
  double* const x = seven(ctx);
  read(ctx, x);
  read(ctx, x + 6);
  EXPECT_DEATH(read(ctx, x + 7), "use-after-poison");
  EXPECT_DEATH(read(ctx, x - 1), "use-after-poison");
  EXPECT_EQ(cudaFreeAsync(x, ctx.stream().native()), cudaSuccess);
}

TEST_F(StrayAccessDeathTest, ReadsPastATensorAreSeen) {
  Context ctx(Device::cuda());
  Tensor x = Tensor::zeros(ctx, {8}, DType::f64);
  read(ctx, x.view().data<double>() + 7);
  EXPECT_DEATH(read(ctx, x.view().data<double>() + 8), "use-after-poison");
}

/// The arithmetic of the emulated libraries is not instrumented; reading their operands is.
TEST_F(StrayAccessDeathTest, ReadsOfALibraryPastABlockAreSeen) {
  Context ctx(Device::cuda());
  double* const x = seven(ctx);
  const Tensor zeros = Tensor::zeros(ctx, {8, 1}, DType::f64);
  Tensor product = Tensor::zeros(ctx, {1, 1}, DType::f64);
  const auto multiply = [&](std::int64_t n) {
    ops::gemm(ctx, ops::Trans::no, ops::Trans::no, 1,
              TensorView(x, DType::f64, Shape{1, n}, Device::cuda()), zeros.view().slice(0, 0, n),
              0, product);
    ctx.stream().synchronize();
  };
  multiply(7);
  EXPECT_DEATH(multiply(8), "use-after-poison");
  EXPECT_EQ(cudaFreeAsync(x, ctx.stream().native()), cudaSuccess);
}

TEST_F(StrayAccessDeathTest, ReadsOfFreedMemoryAreSeen) {
  Context ctx(Device::cuda());
  double* const x = seven(ctx);
  ASSERT_EQ(cudaFreeAsync(x, ctx.stream().native()), cudaSuccess);
  EXPECT_DEATH(read(ctx, x), "use-after-poison");
}

}  // namespace
}  // namespace dkfac
