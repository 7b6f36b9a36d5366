#include <bit>

#include <gtest/gtest.h>

#include "core/shared/simd.h"
#include "nn/backends/cpu/storage.h"
#include "nn/nn_support.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

/// Activations of 16 bits against the same numbers in f32: each value stored is rounded once.
class HalfLayers : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Formats, HalfLayers, ::testing::Values(DType::bf16, DType::f16),
                         [](const auto& param) { return std::string(name_of(param.param)); });

/// Half the distance of neighbours beside 1.
double rounding(DType dtype) { return dtype == DType::bf16 ? 0x1p-8 : 0x1p-11; }

struct Result {
  std::vector<double> y, dx;
};

Result run_half(Context& ctx, Layer& layer, ConstTensorView x, ConstTensorView dy) {
  const ConstTensorView y = layer.forward(ctx, x, Mode::train);
  EXPECT_EQ(y.dtype(), x.dtype());
  Result result{values(ctx, cast_to(ctx, y, DType::f64)), {}};
  const ConstTensorView dx = layer.backward(ctx, dy, InputGrad::needed);
  EXPECT_EQ(dx.dtype(), x.dtype());
  result.dx = values(ctx, cast_to(ctx, dx, DType::f64));
  return result;
}

/// Elementwise |a - b| <= tolerance * max(1, |b|).
void expect_rounded(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_NEAR(a[i], b[i], tolerance * std::max(1.0, std::abs(b[i]))) << i;
  }
}

TEST_P(HalfLayers, WithoutParametersRoundTheResultsOfSinglePrecision) {
  Context ctx;
  Relu relu;
  Celu celu(0.3);
  Smooth tanh(SmoothKind::tanh), sigmoid(SmoothKind::sigmoid), gelu(SmoothKind::gelu),
      silu(SmoothKind::silu);
  Scale scale(0.3);
  Pool2d largest(PoolKind::max, 3, 2, 1), average(PoolKind::average, 2, 2);
  GlobalPool global_largest(PoolKind::max), global_average(PoolKind::average);
  for (const std::int64_t channels : {3, 40}) {
    const Tensor x16 =
        cast_to(ctx, random_tensor(ctx, Shape{3, 7, 8, channels}, DType::f32, 1), GetParam());
    const Tensor x32 = cast_to(ctx, x16, DType::f32);
    for (Layer* layer :
         std::initializer_list<Layer*>{&relu, &celu, &tanh, &sigmoid, &gelu, &silu, &scale,
                                       &largest, &average, &global_largest, &global_average}) {
      const Shape shape = layer->output_shape(x16.shape());
      const Tensor dy16 = cast_to(ctx, random_tensor(ctx, shape, DType::f32, 2), GetParam());
      const Tensor dy32 = cast_to(ctx, dy16, DType::f32);
      const Result single = run_half(ctx, *layer, x32, dy32),
                   half = run_half(ctx, *layer, x16, dy16);
      expect_rounded(half.y, single.y, rounding(GetParam()));
      // CELU's derivative from its rounded output (1/alpha times that error), windows that add up.
      expect_rounded(half.dx, single.dx, 5 * rounding(GetParam()));
    }
  }
}

TEST_P(HalfLayers, OverlappingWindowsAddTheirGradientsInSinglePrecision) {
  Context ctx;
  constexpr std::int64_t kKernel = 24, kSide = 2 * kKernel - 1;
  // All 576 windows contain the pixel in the middle, which is the maximum; bf16 counts to 256.
  for (const PoolKind kind : {PoolKind::max, PoolKind::average}) {
    for (const std::int64_t channels : {1, 40}) {
      Pool2d pool(kind, kKernel, 1);
      Tensor x32 = Tensor::zeros(ctx, Shape{1, kSide, kSide, channels}, DType::f32);
      ops::fill(ctx, x32.view().slice(1, kSide / 2, 1).slice(2, kSide / 2, 1), 1);
      Tensor dy32 = Tensor::empty(ctx, pool.output_shape(x32.shape()), DType::f32);
      ops::fill(ctx, dy32, 1);
      const Result single = run_half(ctx, pool, x32, dy32);
      const Result half =
          run_half(ctx, pool, cast_to(ctx, x32, GetParam()), cast_to(ctx, dy32, GetParam()));
      expect_rounded(half.dx, single.dx, rounding(GetParam()));
    }
  }
}

TEST_P(HalfLayers, BatchNormKeepsItsStatisticsInSinglePrecision) {
  Context ctx;
  for (const ActivationKind kind :
       {ActivationKind::none, ActivationKind::relu, ActivationKind::celu}) {
    const BatchNormOptions options{.groups = 2, .activation = {kind, 0.5}};
    Standalone<BatchNorm2d> wide(ctx, DType::f32, 24, options),
        narrow(ctx, DType::f32, 24, options);
    const Tensor x16 =
        cast_to(ctx, random_tensor(ctx, Shape{8, 5, 4, 24}, DType::f32, 1, 9, 11), GetParam());
    const Tensor dy16 = cast_to(ctx, random_tensor(ctx, x16.shape(), DType::f32, 2), GetParam());
    const Result single =
        run_half(ctx, wide.layer, cast_to(ctx, x16, DType::f32), cast_to(ctx, dy16, DType::f32));
    const Result half = run_half(ctx, narrow.layer, x16, dy16);
    expect_rounded(half.y, single.y, rounding(GetParam()));
    expect_rounded(half.dx, single.dx,
                   (kind == ActivationKind::celu ? 8 : 1) * rounding(GetParam()));
    for (std::size_t i : {0U, 1U}) {
      EXPECT_EQ(values(ctx, narrow->buffers()[i].value), values(ctx, wide->buffers()[i].value));
      if (kind == ActivationKind::celu) continue;  // Its derivative comes from a rounded output.
      EXPECT_EQ(values(ctx, narrow.grad(i)), values(ctx, wide.grad(i)));
    }
  }
}

TEST_P(HalfLayers, ResidualSumsInOnePass) {
  Context ctx;
  auto body = std::make_unique<Sequential>();
  body->add<BatchNorm2d>("bn", 6);
  Residual block(std::move(body), nullptr, {.activation = {ActivationKind::relu}});
  const Tensor memory = bind_standalone(ctx, block, DType::f32, 1);
  const Tensor x16 = cast_to(ctx, random_tensor(ctx, Shape{4, 3, 3, 6}, DType::f32, 1), GetParam());
  const Tensor dy16 = cast_to(ctx, random_tensor(ctx, x16.shape(), DType::f32, 2), GetParam());
  const Result half = run_half(ctx, block, x16, dy16);
  const Result single =
      run_half(ctx, block, cast_to(ctx, x16, DType::f32), cast_to(ctx, dy16, DType::f32));
  // Rounded once, not after each of three operations; the gradients' sum rounds its terms too.
  expect_rounded(half.y, single.y, rounding(GetParam()));
  expect_rounded(half.dx, single.dx, 2 * rounding(GetParam()));
}

TEST_P(HalfLayers, GiveTheSameBitsForEveryInstructionSet) {
  Context ctx;
  const auto all = [&](dkfac::cpu::Simd level) {
    dkfac::cpu::limit_simd(level);
    Standalone<BatchNorm2d> norm(ctx, DType::f32, 20,
                                 BatchNormOptions{.activation = {ActivationKind::celu, 0.3}});
    Pool2d pool(PoolKind::max, 3, 2, 1);
    const Tensor x =
        cast_to(ctx, random_tensor(ctx, Shape{4, 9, 9, 20}, DType::f32, 1), GetParam());
    const Tensor dy =
        cast_to(ctx, random_tensor(ctx, Shape{4, 5, 5, 20}, DType::f32, 2), GetParam());
    Result a = run_half(ctx, norm.layer, x, x);
    const Result b = run_half(ctx, pool, x, dy);
    for (const std::vector<double>& part : {a.dx, b.y, b.dx}) {
      a.y.insert(a.y.end(), part.begin(), part.end());
    }
    return a.y;
  };
  const auto widest = all(dkfac::cpu::Simd::avx512);
  EXPECT_EQ(all(dkfac::cpu::Simd::avx2), widest);
  EXPECT_EQ(all(dkfac::cpu::Simd::baseline), widest);
  dkfac::cpu::limit_simd(dkfac::cpu::Simd::avx512);
}

TEST_P(HalfLayers, RefuseParametersOfAnotherDtype) {
  Context ctx;
  Standalone<BatchNorm2d> norm(ctx, DType::f64, 3);
  const Tensor x = Tensor::zeros(ctx, Shape{4, 2, 2, 3}, GetParam());
  EXPECT_TRUE(contains(message_of([&] { norm->forward(ctx, x, Mode::train); }), "it must be f32"));
}

TEST(Storage, RoundsToBf16AsCoreDoes) {
  std::int64_t wrong = 0;
  for (std::uint32_t high = 0; high < 0x10000U; ++high) {
    for (const std::uint32_t low : {0U, 1U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
      const auto x = std::bit_cast<float>(high << 16U | low);
      wrong += cpu::store<bf16>(x) == to_bf16(x) ? 0 : 1;
    }
  }
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace dkfac::nn
