#include <functional>

#include <gtest/gtest.h>

#include "nn/nn_support.h"

/// All passes of convolutions of every geometry against their definition.
namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

/// A convolution and the images it is tried on.
struct Geometry {
  const char* name;
  std::int64_t n, h, w, in, out;
  ConvOptions options;
};

ConvOptions grouped(std::int64_t groups, ConvOptions o) {
  o.groups = groups;
  return o;
}
ConvOptions dilated(int h, int w, ConvOptions o) {
  o.window.dilation_h = h;
  o.window.dilation_w = w;
  return o;
}
ConvOptions same(int kernel_h, int kernel_w) {
  return {.window = {.kernel_h = kernel_h, .kernel_w = kernel_w}, .same = true};
}
constexpr auto square = ConvOptions::square;

const Geometry kGeometries[] = {
    {"square", 2, 6, 6, 3, 4, {}},
    {"padded", 2, 5, 7, 2, 3, square(3, {.pad = 1})},
    {"strided", 3, 8, 7, 2, 5, square(3, {.stride = 2, .pad = 1})},
    {"tall", 1, 9, 5, 3, 2, {.window = {.kernel_h = 5, .kernel_w = 1, .pad_h = 2, .pad_w = 2}}},
    {"wide",
     2,
     4,
     9,
     1,
     6,
     {.window =
          {.kernel_h = 2, .kernel_w = 5, .stride_h = 3, .stride_w = 3, .pad_h = 1, .pad_w = 1},
      .bias = false}},
    {"point", 4, 3, 3, 5, 7, square(1, {.bias = false})},
    {"point_strided", 2, 6, 5, 8, 16, square(1, {.stride = 2, .bias = false})},
    {"points_uneven_strides",
     2,
     7,
     8,
     8,
     16,
     {.window = {.kernel_h = 1, .kernel_w = 1, .stride_h = 3, .stride_w = 2}}},
    {"points_many", 3, 24, 20, 16, 32, square(1, {})},
    {"points_many_strided", 5, 31, 33, 8, 16, square(1, {.stride = 2})},
    {"large_weights", 3, 2, 3, 256, 128, square(3, {.pad = 1})},
    {"points_padded", 2, 4, 4, 8, 8, square(1, {.pad = 1})},
    {"lenet", 2, 12, 12, 1, 6, square(5, {.pad = 2})},
    {"channels16", 2, 8, 8, 16, 32, square(3, {.pad = 1})},
    {"row_kernel", 2, 5, 9, 4, 6, {.window = {.kernel_h = 1, .kernel_w = 7, .pad_w = 3}}},
    {"uneven",
     2,
     7,
     8,
     3,
     4,
     {.window =
          {.kernel_h = 2, .kernel_w = 3, .stride_h = 1, .stride_w = 2, .pad_h = 2, .pad_w = 0}}},
    {"more_zeros_after",
     2,
     5,
     6,
     8,
     8,
     {.window = {.kernel_h = 2, .kernel_w = 4, .pad_w = 1, .extra_h = 2, .extra_w = 1}}},
    {"grouped", 2, 6, 5, 6, 4, grouped(2, square(3, {.pad = 1}))},
    {"grouped_strided", 2, 7, 7, 32, 16,
     grouped(2, square(3, {.stride = 2, .pad = 1, .bias = false}))},
    {"grouped_points", 2, 4, 4, 12, 18, grouped(3, square(1, {}))},
    {"depthwise", 2, 6, 7, 8, 8, grouped(8, square(3, {.pad = 1}))},
    {"depthwise_strided", 2, 9, 8, 32, 32,
     grouped(32, square(3, {.stride = 2, .pad = 1, .bias = false}))},
    {"depth_multiplier", 2, 6, 6, 3, 9, grouped(3, square(3, {.pad = 1}))},
    {"dilated", 2, 8, 9, 4, 6, dilated(2, 2, square(3, {.pad = 2}))},
    {"dilated_rows", 2, 9, 6, 3, 4,
     dilated(3, 1, {.window = {.kernel_h = 3, .kernel_w = 2, .stride_w = 2, .pad_h = 1}})},
    {"dilated_beyond", 1, 4, 3, 2, 2, dilated(2, 3, square(3, {.pad = 3}))},
    {"dilated_groups", 2, 9, 9, 32, 32,
     dilated(2, 2, grouped(2, square(3, {.stride = 2, .pad = 2})))},
    {"same_odd", 2, 6, 5, 8, 8, same(3, 5)},
    {"same_even", 2, 5, 6, 3, 4, same(2, 4)},
    {"same_even_dilated", 2, 9, 8, 2, 3, dilated(1, 3, same(3, 4))},
    {"same_depthwise", 2, 5, 6, 16, 16, grouped(16, same(4, 3))},
    {"same_larger_than_the_image", 2, 2, 3, 2, 2, same(6, 7)},
};

class Convolution : public ::testing::TestWithParam<Geometry> {};
INSTANTIATE_TEST_SUITE_P(Shapes, Convolution, ::testing::ValuesIn(kGeometries),
                         [](const auto& param) { return std::string(param.param.name); });

/// Rows and columns of zeros before the image.
struct Corner {
  std::int64_t h, w;
};
Corner corner_of(const ConvOptions& o) {
  if (!o.same) return {o.window.pad_h, o.window.pad_w};
  // Half of all zeros, rounded down, are before the image.
  return {o.window.dilation_h * (o.window.kernel_h - 1) / 2,
          o.window.dilation_w * (o.window.kernel_w - 1) / 2};
}

/// Calls f(element of y, of x, of W) for each product y += x W of the definition.
using Visit = std::function<void(std::size_t, std::size_t, std::size_t)>;
void each_product(const Geometry& c, const ConvOptions& o, Corner corner, const Shape& y,
                  const Visit& f) {
  const std::int64_t in = c.in / o.groups, out = c.out / o.groups;
  for (std::int64_t at_y = 0; at_y < y.numel(); ++at_y) {
    const std::int64_t n = at_y / (y[1] * y[2] * y[3]), i = at_y / (y[2] * y[3]) % y[1];
    const std::int64_t j = at_y / y[3] % y[2], channel = at_y % y[3];
    for (std::int64_t kh = 0; kh < o.window.kernel_h; ++kh) {
      for (std::int64_t kw = 0; kw < o.window.kernel_w; ++kw) {
        const std::int64_t h = i * o.window.stride_h + kh * o.window.dilation_h - corner.h;
        const std::int64_t w = j * o.window.stride_w + kw * o.window.dilation_w - corner.w;
        if (h < 0 || h >= c.h || w < 0 || w >= c.w) continue;
        for (std::int64_t k = 0; k < in; ++k) {
          const std::int64_t at_x = ((n * c.h + h) * c.w + w) * c.in + channel / out * in + k;
          const std::int64_t at_w =
              ((channel * o.window.kernel_h + kh) * o.window.kernel_w + kw) * in + k;
          f(static_cast<std::size_t>(at_y), static_cast<std::size_t>(at_x),
            static_cast<std::size_t>(at_w));
        }
      }
    }
  }
}

/// Results of the three passes.
struct ConvResults {
  std::vector<double> y, dx, dw, db;
};

ConvResults naive(Context& ctx, const Geometry& c, Corner corner, Standalone<Conv2d>& conv,
                  ConstTensorView x, ConstTensorView dy) {
  const auto xv = values(ctx, x), w = values(ctx, conv.value(0)), dyv = values(ctx, dy);
  ConvResults r{std::vector<double>(dyv.size()),
                std::vector<double>(xv.size()),
                std::vector<double>(w.size()),
                {}};
  each_product(c, c.options, corner, dy.shape(), [&](auto at_y, auto at_x, auto at_w) {
    r.y[at_y] += xv[at_x] * w[at_w];
    r.dx[at_x] += dyv[at_y] * w[at_w];
    r.dw[at_w] += dyv[at_y] * xv[at_x];
  });
  if (!c.options.bias) return r;
  const auto bias = values(ctx, conv.value(1));
  r.db.resize(bias.size());
  for (std::size_t i = 0; i < dyv.size(); ++i) {
    r.y[i] += bias[i % bias.size()];
    r.db[i % bias.size()] += dyv[i];
  }
  return r;
}

ConvResults run_conv(Context& ctx, Standalone<Conv2d>& conv, ConstTensorView x,
                     ConstTensorView dy) {
  ConvResults r;
  r.y = values(ctx, conv->forward(ctx, x, Mode::train));
  r.dx = values(ctx, conv->backward(ctx, dy, InputGrad::needed));
  r.dw = values(ctx, conv.grad(0));
  if (conv->options().bias) r.db = values(ctx, conv.grad(1));
  return r;
}

void fill_bias(Context& ctx, Standalone<Conv2d>& conv) {
  if (conv->options().bias) {
    ops::copy(ctx, random_tensor(ctx, Shape{conv->out()}, conv.value(1).dtype(), 9), conv.value(1));
  }
}

void expect_near(const ConvResults& actual, const ConvResults& expected, const Geometry& c,
                 double epsilon) {
  // c = 2, n = the longest sum: a patch, the outputs that read a pixel, the positions of the batch.
  const auto kernel = static_cast<double>(c.options.window.kernel_h * c.options.window.kernel_w);
  const double patch = kernel * static_cast<double>(c.in / c.options.groups) + 1;
  const double taps = kernel * static_cast<double>(c.out / c.options.groups);
  const auto positions = static_cast<double>(static_cast<std::int64_t>(actual.y.size()) / c.out);
  EXPECT_TRUE(near(actual.y, expected.y, 2 * patch * epsilon));
  EXPECT_TRUE(near(actual.dx, expected.dx, 2 * taps * epsilon));
  EXPECT_TRUE(near(actual.dw, expected.dw, 2 * positions * epsilon));
  EXPECT_TRUE(near(actual.db, expected.db, 2 * positions * epsilon));
}

TEST_P(Convolution, FollowsItsDefinitionInAllPasses) {
  const Geometry& c = GetParam();
  for (const Backend backend : {Backend::reference, Backend::fast}) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      SCOPED_TRACE(detail::concat(dtype, backend == Backend::fast ? " fast" : " reference"));
      Context ctx(Device::cpu(), {.backend = backend});
      Standalone<Conv2d> conv(ctx, dtype, c.in, c.out, c.options);
      fill_bias(ctx, conv);
      const Tensor x = random_tensor(ctx, Shape{c.n, c.h, c.w, c.in}, dtype, 1);
      const Tensor dy = random_tensor(ctx, conv->output_shape(x.shape()), dtype, 2);
      expect_near(run_conv(ctx, conv, x, dy), naive(ctx, c, corner_of(c.options), conv, x, dy), c,
                  dtype == DType::f64 ? eps<double> : eps<float>);
    }
  }
}

TEST_P(Convolution, GradientsMatchDifferences) {
  const Geometry& c = GetParam();
  Context ctx;
  Standalone<Conv2d> conv(ctx, DType::f64, c.in, c.out, c.options);
  fill_bias(ctx, conv);
  const Tensor x = random_tensor(ctx, Shape{c.n, c.h, c.w, c.in}, DType::f64, 1);
  const GradientCheckResult result = check_gradients(ctx, conv.layer, x, {.elements = 12});
  EXPECT_LE(result.worst, kGradientTolerance) << result.where;
  EXPECT_GT(result.checked, 20);
}

/// Negative control: wrong readings of the options give results far outside the tolerance.
TEST(ConvGeometry, TheCheckTellsWrongGeometriesApart) {
  Context ctx;
  for (const Geometry& c : kGeometries) {
    const ConvOptions& o = c.options;
    Geometry wrong = c;
    Corner corner = corner_of(o);
    if (o.same && (o.window.kernel_h % 2 == 0 || o.window.kernel_w % 2 == 0)) {
      const ops::Window& k = o.window;
      corner = {k.dilation_h * (k.kernel_h - 1) - corner.h,  // the odd row before the image
                k.dilation_w * (k.kernel_w - 1) - corner.w};
    } else if (o.window.dilation_h * o.window.dilation_w > 1) {
      std::swap(wrong.options.window.dilation_h, wrong.options.window.dilation_w);
      if (o.window.dilation_h == o.window.dilation_w)
        wrong.options.window.dilation_h = wrong.options.window.dilation_w = 1;
    } else if (o.window.stride_h != o.window.stride_w) {
      wrong.options.window.stride_w = o.window.stride_h;
    } else {
      continue;
    }
    SCOPED_TRACE(c.name);
    Standalone<Conv2d> conv(ctx, DType::f64, c.in, c.out, o);
    const Tensor x = random_tensor(ctx, Shape{c.n, c.h, c.w, c.in}, DType::f64, 1);
    const Tensor dy = random_tensor(ctx, conv->output_shape(x.shape()), DType::f64, 2);
    const ConvResults right = run_conv(ctx, conv, x, dy),
                      other = naive(ctx, wrong, corner, conv, x, dy);
    EXPECT_FALSE(near(right.y, other.y, 0.1));
    EXPECT_FALSE(near(right.dx, other.dx, 0.1));
    EXPECT_FALSE(near(right.dw, other.dw, 0.1));
  }
}

TEST(ConvGeometry, OneGroupPerChannelDiffersFromOneGroup) {
  // Only channel 0 is not 0: a depthwise kernel leaves the other outputs 0.
  Context ctx;
  Standalone<Conv2d> conv(ctx, DType::f32, 4, 4, grouped(4, square(3, {.pad = 1, .bias = false})));
  Tensor x = Tensor::zeros(ctx, Shape{1, 4, 4, 4});
  for (std::int64_t i = 0; i < 64; i += 4) x.data<float>()[i] = 1;
  const auto y = values(ctx, conv->forward(ctx, x, Mode::eval));
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_EQ(y[i] != 0, i % 4 == 0);
}

TEST(ConvGeometry, SameKeepsTheSizeAndPutsTheOddRowAfterTheImage) {
  // A kernel 2x1 of (1, 10): y[i] = x[i] + 10 x[i+1], with a zero after the last row.
  Context ctx;
  Standalone<Conv2d> conv(
      ctx, DType::f64, 1, 1,
      ConvOptions{.window = {.kernel_h = 2, .kernel_w = 1}, .same = true, .bias = false});
  conv.value(0).data<double>()[0] = 1;
  conv.value(0).data<double>()[1] = 10;
  Tensor x = Tensor::empty(ctx, Shape{1, 3, 1, 1}, DType::f64);
  for (int i = 0; i < 3; ++i) x.data<double>()[i] = i + 1;
  EXPECT_EQ(conv->output_shape(x.shape()), x.shape());
  EXPECT_EQ(values(ctx, conv->forward(ctx, x, Mode::eval)), (std::vector<double>{21, 32, 3}));
}

}  // namespace
}  // namespace dkfac::nn
