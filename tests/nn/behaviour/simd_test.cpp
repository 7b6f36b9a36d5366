#include "core/shared/simd.h"

#include <gtest/gtest.h>

#include "nn/nn_support.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

/// Restores the widest instructions at the end of a test.
struct Restore {
  ~Restore() { dkfac::cpu::limit_simd(dkfac::cpu::Simd::avx512); }
};

void append(Context& ctx, std::vector<double>& all, ConstTensorView x) {
  const auto part = values(ctx, x);
  all.insert(all.end(), part.begin(), part.end());
}

/// Outputs and gradients of every layer with loops of this library.
std::vector<double> results(DType dtype, std::int64_t channels) {
  Context ctx;
  Standalone<BatchNorm2d> norm(ctx, dtype, channels, BatchNormOptions{.groups = 2});
  Standalone<BatchNorm2d> rectified(
      ctx, dtype, channels, BatchNormOptions{.groups = 4, .activation = {ActivationKind::relu}});
  Standalone<BatchNorm2d> smooth(ctx, dtype, channels,
                                 BatchNormOptions{.activation = {ActivationKind::celu, 0.3}});
  Relu relu;
  Celu celu(0.2);
  Smooth tanh(SmoothKind::tanh), sigmoid(SmoothKind::sigmoid), gelu(SmoothKind::gelu),
      silu(SmoothKind::silu);
  Pool2d largest(PoolKind::max, 2, 2), padded(PoolKind::max, 3, 2, 1);
  Pool2d average(PoolKind::average, 3, 2);
  GlobalPool global(PoolKind::average), global_largest(PoolKind::max);
  const Tensor x = random_tensor(ctx, Shape{4, 13, 37, channels}, dtype, 1, -1, 3);
  std::vector<double> all;
  for (Layer* layer : std::initializer_list<Layer*>{
           &norm.layer, &rectified.layer, &smooth.layer, &relu, &celu, &tanh, &sigmoid, &gelu,
           &silu, &largest, &padded, &average, &global, &global_largest}) {
    append(ctx, all, layer->forward(ctx, x, Mode::train));
    const Tensor dy = random_tensor(ctx, layer->output_shape(x.shape()), dtype, 2);
    append(ctx, all, layer->backward(ctx, dy, InputGrad::needed));
  }
  append(ctx, all, norm.grad(0));
  append(ctx, all, smooth.grad(0));
  append(ctx, all, norm->forward(ctx, x, Mode::eval));
  return all;
}

TEST(Simd, GivesTheSameBitsForEveryInstructionSet) {
  const Restore restore;
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const std::int64_t channels : {1, 6, 20, 67}) {
      dkfac::cpu::limit_simd(dkfac::cpu::Simd::avx512);
      const auto widest = results(dtype, channels);
      for (const dkfac::cpu::Simd level : {dkfac::cpu::Simd::avx2, dkfac::cpu::Simd::baseline}) {
        dkfac::cpu::limit_simd(level);
        EXPECT_EQ(results(dtype, channels), widest) << dtype << ' ' << channels;
      }
    }
  }
}

TEST(Simd, TheLimitHolds) {
  const Restore restore;
  const dkfac::cpu::Simd widest = dkfac::cpu::simd_level();
  dkfac::cpu::limit_simd(dkfac::cpu::Simd::baseline);
  EXPECT_EQ(dkfac::cpu::simd_level(), dkfac::cpu::Simd::baseline);
  dkfac::cpu::limit_simd(dkfac::cpu::Simd::avx512);
  EXPECT_EQ(dkfac::cpu::simd_level(), widest);
}

}  // namespace
}  // namespace dkfac::nn
