#include "nn/models/pad_shortcut.h"

#include <gtest/gtest.h>

#include "nn/nn_support.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

struct Case {
  Shape input;
  std::int64_t out;
  int stride;
};
const Case kCases[] = {{{2, 6, 8, 4}, 8, 2},
                       {{1, 5, 7, 3}, 8, 2},
                       {{2, 3, 3, 2}, 5, 1},
                       {{1, 7, 4, 2}, 2, 3},
                       {{0, 4, 4, 2}, 4, 2}};

/// y[n,h,w,c] = x[n, stride h, stride w, c - (out - in) / 2], zero where that channel is none.
std::vector<double> by_definition(const Case& c, const std::vector<double>& x, const Shape& y) {
  const std::int64_t in = c.input[3], before = (c.out - in) / 2;
  std::vector<double> out;
  for (std::int64_t n = 0; n < y[0]; ++n)
    for (std::int64_t h = 0; h < y[1]; ++h)
      for (std::int64_t w = 0; w < y[2]; ++w)
        for (std::int64_t k = -before; k < c.out - before; ++k) {
          const std::int64_t pixel = (n * c.input[1] + h * c.stride) * c.input[2] + w * c.stride;
          out.push_back(k < 0 || k >= in ? 0.0 : x[static_cast<std::size_t>(pixel * in + k)]);
        }
  return out;
}

TEST(PadShortcut, TakesEveryStridethPixelAndPadsChannelsOnBothSides) {
  Context ctx;
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const Case& c : kCases) {
      Standalone<PadShortcut> layer(ctx, dtype, c.input[3], c.out, c.stride);
      const Tensor x = random_tensor(ctx, c.input, dtype, 1);
      const ConstTensorView y = layer->forward(ctx, x, Mode::eval);
      EXPECT_EQ(y.shape(), layer->output_shape(c.input));
      EXPECT_EQ(values(ctx, y), by_definition(c, values(ctx, x), y.shape())) << c.input;
    }
  }
}

TEST(PadShortcut, ItsGradientMatchesDifferences) {
  Context ctx;
  for (const Case& c : kCases) {
    if (c.input[0] == 0) continue;
    Standalone<PadShortcut> layer(ctx, DType::f64, c.input[3], c.out, c.stride);
    const Tensor x = random_tensor(ctx, c.input, DType::f64, 1);
    const GradientCheckResult result = check_gradients(ctx, layer.layer, x, {.elements = 400});
    EXPECT_LE(result.worst, kGradientTolerance) << result.where;
    EXPECT_EQ(result.checked, x.numel());
  }
}

TEST(PadShortcut, ForgetsTheBatchBefore) {
  Context ctx;
  Standalone<PadShortcut> used(ctx, DType::f64, 2, 4, 2), fresh(ctx, DType::f64, 2, 4, 2);
  const auto gradient = [&](PadShortcut& layer, const Shape& image, std::uint64_t seed) {
    const Tensor x = random_tensor(ctx, image, DType::f64, seed);
    const ConstTensorView y = layer.forward(ctx, x, Mode::train);
    const Tensor dy = random_tensor(ctx, y.shape(), DType::f64, seed + 1);
    return values(ctx, layer.backward(ctx, dy, InputGrad::needed));
  };
  (void)gradient(used.layer, Shape{2, 6, 6, 2}, 1);
  EXPECT_EQ(gradient(used.layer, Shape{2, 5, 5, 2}, 7),
            gradient(fresh.layer, Shape{2, 5, 5, 2}, 7));
}

TEST(PadShortcut, RefusesWhatDoesNotFit) {
  Context ctx;
  EXPECT_THROW(PadShortcut(4, 2, 2), InvalidArgument);
  EXPECT_THROW(PadShortcut(0, 2, 2), InvalidArgument);
  EXPECT_THROW(PadShortcut(2, 4, 0), InvalidArgument);
  Standalone<PadShortcut> layer(ctx, DType::f32, 2, 4, 2);
  const Tensor x = Tensor::zeros(ctx, Shape{1, 4, 4, 3});
  EXPECT_TRUE(contains(message_of([&] { layer->forward(ctx, x, Mode::eval); }), "[1, 4, 4, 3]"));
  const Tensor fits = Tensor::zeros(ctx, Shape{1, 4, 4, 2}), dy = Tensor::zeros(ctx, {1, 2, 2, 4});
  layer->forward(ctx, fits, Mode::eval);
  EXPECT_THROW(layer->backward(ctx, dy, InputGrad::needed), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::nn
