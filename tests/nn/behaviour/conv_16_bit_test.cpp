#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "dkfac/core/threads.h"

#include "nn/nn_support.h"

/// Convolutions and Linear with bf16 and f16 activations against f64.
namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

/// Distance from 1 to the next number.
double spacing(DType dtype) { return dtype == DType::bf16 ? 1.0 / 128 : 1.0 / 1024; }

/// Rounds f32 memory to numbers of a 16-bit format.
void round_in_place(Context& ctx, DType dtype, TensorView x) {
  ops::cast(ctx, cast_to(ctx, x, dtype), x);
}

struct Results {
  std::vector<double> y, dx, dw, db;
};

template <class LayerType>
Results run(Context& ctx, Standalone<LayerType>& layer, ConstTensorView x, ConstTensorView dy) {
  const ConstTensorView y = layer->forward(ctx, x, Mode::train);
  EXPECT_EQ(y.dtype(), x.dtype());
  Results r{values(ctx, y), {}, {}, {}};
  const ConstTensorView dx = layer->backward(ctx, dy, InputGrad::needed);
  EXPECT_EQ(dx.dtype(), x.dtype());
  r.dx = values(ctx, dx);
  r.dw = values(ctx, layer.grad(0));
  if (layer->parameters().size() > 1) r.db = values(ctx, layer.grad(1));
  return r;
}

/// Equal 16-bit operands in f64, and in 16 bits.
struct Pair {
  Results wide, narrow;
};

template <class LayerType, class... Args>
Pair compare(Backend backend, DType dtype, const Shape& image, Args... args) {
  Context ctx(Device::cpu(), {.backend = backend});
  Standalone<LayerType> narrow(ctx, DType::f32, args...), wide(ctx, DType::f64, args...);
  round_in_place(ctx, dtype, narrow.value(0));
  ops::cast(ctx, narrow.value(0), wide.value(0));
  if (narrow->parameters().size() > 1) {
    ops::fill(ctx, narrow.value(1), 0.25);
    ops::fill(ctx, wide.value(1), 0.25);
  }
  const Tensor x = cast_to(ctx, random_tensor(ctx, image, DType::f32, 1), dtype);
  const Shape out = narrow->output_shape(image);
  const Tensor dy = cast_to(ctx, random_tensor(ctx, out, DType::f32, 2), dtype);
  return {run(ctx, wide, cast_to(ctx, x, DType::f64), cast_to(ctx, dy, DType::f64)),
          run(ctx, narrow, x, dy)};
}

/// sums: longest sum of products of the weight gradient.
void expect_close(const Pair& r, DType dtype, double sums) {
  // Sums in f32 are exact to far less than half a spacing of the format, which rounding them costs.
  const double rounding = 0.51 * spacing(dtype);
  EXPECT_TRUE(near(r.narrow.y, r.wide.y, rounding));
  EXPECT_TRUE(near(r.narrow.dx, r.wide.dx, rounding));
  // Never rounded to 16 bits: c = 2, n = positions.
  EXPECT_TRUE(near(r.narrow.dw, r.wide.dw, 2 * sums * eps<float>));
  EXPECT_TRUE(near(r.narrow.db, r.wide.db, 2 * sums * eps<float>));
  // Negative control: 16-bit results do not pass for f32 ones.
  EXPECT_FALSE(near(r.narrow.y, r.wide.y, 0.05 * spacing(dtype)));
}

struct Format {
  Backend backend;
  DType dtype;
};
class SixteenBit : public ::testing::TestWithParam<Format> {};
INSTANTIATE_TEST_SUITE_P(Formats, SixteenBit,
                         ::testing::Values(Format{Backend::fast, DType::bf16},
                                           Format{Backend::fast, DType::f16},
                                           Format{Backend::reference, DType::bf16},
                                           Format{Backend::reference, DType::f16}),
                         [](const auto& p) {
                           return detail::concat(
                               p.param.backend == Backend::fast ? "fast_" : "reference_",
                               p.param.dtype);
                         });

TEST_P(SixteenBit, ConvolutionsRoundOnceAndKeepTheWeightGradientInF32) {
  const auto [backend, dtype] = GetParam();
  ConvOptions grouped = ConvOptions::square(3, {.stride = 2, .pad = 1});
  grouped.groups = 4;
  const ConvOptions dilated{
      .window = {.kernel_h = 3, .kernel_w = 3, .dilation_h = 2, .dilation_w = 2},
      .same = true,
      .bias = false};
  for (const ConvOptions& o :
       {ConvOptions::square(3, {.pad = 1}), ConvOptions::square(1, {}),
        ConvOptions::square(5, {.stride = 2, .bias = false}), grouped, dilated}) {
    const Pair r = compare<Conv2d>(backend, dtype, Shape{3, 9, 8, 16}, 16, 32, o);
    SCOPED_TRACE(Conv2d(16, 32, o).describe());
    expect_close(r, dtype, 3 * 9 * 8);
  }
  // Few pixels, large weights.
  expect_close(compare<Conv2d>(backend, dtype, Shape{2, 2, 2, 256}, 256, 128,
                               ConvOptions::square(3, {.pad = 1})),
               dtype, 2 * 4);
  expect_close(
      compare<Conv2d>(backend, dtype, Shape{2, 40, 30, 8}, 8, 16, ConvOptions::square(1, {})),
      dtype, 2 * 40 * 30);
  // The first layer of an image network.
  expect_close(compare<Conv2d>(backend, dtype, Shape{2, 12, 12, 3}, 3, 16,
                               ConvOptions::square(7, {.stride = 2, .pad = 3})),
               dtype, 2 * 36);
}

TEST_P(SixteenBit, LinearRoundsOnceAndKeepsTheWeightGradientInF32) {
  const auto [backend, dtype] = GetParam();
  expect_close(compare<Linear>(backend, dtype, Shape{33, 40}, 40, 10), dtype, 33);
  expect_close(compare<Linear>(backend, dtype, Shape{7, 2, 3, 8}, 8, 5, false), dtype, 7);
}

TEST_P(SixteenBit, WeightsAreRoundedToTheFormatOfTheActivations) {
  const auto [backend, dtype] = GetParam();
  Context ctx(Device::cpu(), {.backend = backend});
  Standalone<Conv2d> conv(ctx, DType::f32, 1, 1, ConvOptions::square(1, {.bias = false}));
  // Ties go to even: 1 + s/2 to 1, 1 + 3s/2 to 1 + 2s.
  const double s = spacing(dtype);
  Tensor one = cast_to(ctx, Tensor::zeros(ctx, Shape{1, 1, 1, 1}), dtype);
  ops::fill(ctx, one, 1.0);
  for (const auto& [weight, product] : {std::pair{1 + s / 2, 1.0}, {1 + 1.5 * s, 1 + 2 * s}}) {
    ops::fill(ctx, conv.value(0), weight);
    EXPECT_EQ(values(ctx, conv->forward(ctx, one, Mode::train))[0], product);
    EXPECT_EQ(values(ctx, conv->backward(ctx, one, InputGrad::needed))[0], product);
    EXPECT_EQ(values(ctx, conv.value(0))[0], weight);  // the master stays
  }
}

TEST_P(SixteenBit, OverflowsAndUnderflowsLikeTheFormat) {
  const auto [backend, dtype] = GetParam();
  Context ctx(Device::cpu(), {.backend = backend});
  const bool f16 = dtype == DType::f16;
  Standalone<Conv2d> conv(ctx, DType::f32, 1, 1, ConvOptions::square(1, {.bias = false}));
  Standalone<Linear> linear(ctx, DType::f32, 1, 1, false);
  const auto product = [&](double weight, double x) {
    Tensor input = Tensor::empty(ctx, Shape{1, 1, 1, 1}, dtype);
    ops::fill(ctx, input, x);
    ops::fill(ctx, conv.value(0), weight);
    ops::fill(ctx, linear.value(0), weight);
    const double y = values(ctx, conv->forward(ctx, input, Mode::eval))[0];
    const double z = values(ctx, linear->forward(ctx, input, Mode::eval))[0];
    EXPECT_TRUE(z == y || (std::isnan(z) && std::isnan(y))) << z << " " << y;
    return y;
  };
  EXPECT_EQ(product(256, 256), f16 ? std::numeric_limits<double>::infinity() : 65536);
  EXPECT_EQ(product(0x1p-13, 0x1p-13), f16 ? 0 : 0x1p-26);
  EXPECT_EQ(product(0x1p-12, 0x1p-12), 0x1p-24);  // the smallest subnormal of f16
  EXPECT_TRUE(std::isnan(product(1, std::numeric_limits<double>::quiet_NaN())));
}

TEST_P(SixteenBit, TheBiasOfAFrozenConvolutionIsTrained) {
  const auto [backend, dtype] = GetParam();
  Context ctx(Device::cpu(), {.backend = backend});
  ConvOptions o = ConvOptions::square(3, {.pad = 1});
  o.frozen = true;
  Standalone<Conv2d> conv(ctx, DType::f32, 3, 4, o);
  const Tensor x = cast_to(ctx, random_tensor(ctx, Shape{2, 5, 5, 3}, DType::f32, 1), dtype);
  const Tensor dy = cast_to(ctx, random_tensor(ctx, Shape{2, 5, 5, 4}, DType::f32, 2), dtype);
  conv->forward(ctx, x, Mode::train);
  conv->backward(ctx, dy, InputGrad::needed);
  const auto dys = values(ctx, dy);
  std::vector<double> sums(4);
  for (std::size_t i = 0; i < dys.size(); ++i) sums[i % 4] += dys[i];
  EXPECT_TRUE(near(values(ctx, conv.grad(0)), sums, 2 * 50 * eps<float>));  // c = 2, n = 50
}

TEST_P(SixteenBit, LayersServeManyShapesAndThreadCountsInTurn) {
  const auto [backend, dtype] = GetParam();
  Context ctx(Device::cpu(), {.backend = backend});
  Standalone<Linear> narrow(ctx, DType::f32, 16, 24), wide(ctx, DType::f64, 16, 24);
  const int before = threads();
  for (int round = 0; round < 2; ++round) {
    for (const std::int64_t n : {1, 5, 2, 1100, 3, 4}) {
      set_threads(1 + static_cast<int>(n) % 2);
      // Weights differ from pass to pass, as in training.
      ops::axpby(ctx, 1.5, Tensor::copy_of(ctx, narrow.value(0)), 0.0, narrow.value(0));
      round_in_place(ctx, dtype, narrow.value(0));
      ops::cast(ctx, narrow.value(0), wide.value(0));
      const Tensor x = cast_to(ctx, random_tensor(ctx, Shape{n, 16}, DType::f32, 1), dtype);
      const Tensor dy = cast_to(ctx, random_tensor(ctx, Shape{n, 24}, DType::f32, 2), dtype);
      const Results expected =
          run(ctx, wide, cast_to(ctx, x, DType::f64), cast_to(ctx, dy, DType::f64));
      expect_close({expected, run(ctx, narrow, x, dy)}, dtype, static_cast<double>(n));
    }
  }
  set_threads(before);
}

TEST_P(SixteenBit, GivesZeroGradientsForAnEmptyBatch) {
  const auto [backend, dtype] = GetParam();
  Context ctx(Device::cpu(), {.backend = backend});
  Standalone<Linear> linear(ctx, DType::f32, 3, 2);
  ops::fill(ctx, linear.grad(0), 9);
  ops::fill(ctx, linear.grad(1), 9);
  linear->forward(ctx, Tensor::empty(ctx, Shape{0, 3}, dtype), Mode::train);
  const ConstTensorView dx =
      linear->backward(ctx, Tensor::empty(ctx, Shape{0, 2}, dtype), InputGrad::needed);
  EXPECT_EQ(dx.shape(), (Shape{0, 3}));
  EXPECT_EQ(values(ctx, linear.grad(0)), std::vector<double>(6, 0.0));
  EXPECT_EQ(values(ctx, linear.grad(1)), std::vector<double>(2, 0.0));
}

TEST(SixteenBitGradient, AnF32GradientHasDigitsThatBf16HasNot) {
  const Pair r = compare<Conv2d>(Backend::fast, DType::bf16, Shape{4, 8, 8, 16}, 16, 16,
                                 ConvOptions::square(3, {.pad = 1, .bias = false}));
  Context ctx;
  const ConstTensorView exact = view_of(r.wide.dw.data(), Shape{16 * 16 * 9});
  const auto rounded = values(ctx, cast_to(ctx, exact, DType::bf16));
  EXPECT_LT(100 * relative_error(r.narrow.dw, r.wide.dw), relative_error(rounded, r.wide.dw));
}

}  // namespace
}  // namespace dkfac::nn
