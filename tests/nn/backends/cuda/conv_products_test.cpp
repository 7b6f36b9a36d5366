#include <gtest/gtest.h>

#include "dkfac/nn/layers.h"

#include "nn/backends/conv_backend.h"
#include "nn/cuda/beside_host.h"
#include "nn/cuda/conv_passes.h"

/// Convolutions by products on a device, compared with the host.
namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

class ProductConvolution : public ConvPasses {};
INSTANTIATE_TEST_SUITE_P(Shapes, ProductConvolution,
                         ::testing::Combine(::testing::ValuesIn(kConvCases),
                                            ::testing::ValuesIn(kActivationTypes)),
                         [](const auto& p) {
                           return detail::concat(std::get<0>(p.param).name, "_",
                                                 std::get<1>(p.param));
                         });

TEST_P(ProductConvolution, IsThatOfTheHostInAllPasses) {
  const auto& [c, dtype] = GetParam();
  const ConvShape s = with_outputs(c.shape, dtype);
  const std::unique_ptr<ConvBackend> products = cuda::make_product_conv();
  ASSERT_TRUE(products != nullptr && products->takes(s));
  const std::unique_ptr<ConvBackend> reference = cpu::make_reference_conv();
  const std::unique_ptr<ConvBackend> widened = cpu::make_widened_conv(*reference);
  const Operands o = operands(s);
  const Results expected = run(cpu, reference->takes(s) ? *reference : *widened, s, o);
  const Results actual = run(ctx, *products, s, o);
  // c = 2, n = the longest sum; the adders of tensor cores may truncate, which is c = 4 in f32. A
  // value of 16 bits is rounded once more, and a sum beside a tie may go the other way: c = 1.
  const double sums = (dtype == DType::f64 ? 2 : 4) * spacing(compute_dtype(dtype));
  const double stored = compute_dtype(dtype) == dtype ? 0 : spacing(dtype);
  const auto patch = static_cast<double>(s.patch() + 1);
  const auto taps = static_cast<double>(s.window.kernel_h * s.window.kernel_w * s.group_out());
  const auto pixels = static_cast<double>(s.n * s.out_h * s.out_w);
  EXPECT_TRUE(near(actual.y, expected.y, sums * patch + stored));
  EXPECT_TRUE(near(actual.dx, expected.dx, sums * taps + stored));
  EXPECT_TRUE(near(actual.dw, expected.dw, sums * pixels));  // never rounded to 16 bits
  EXPECT_TRUE(near(actual.db, expected.db, sums * pixels));
  EXPECT_EQ(run(ctx, *products, s, o), actual) << "not the same bits again";
  // Weights are rounded to 16 bits for a forward pass and for a gradient of the input.
  const bool rounds = compute_dtype(dtype) != dtype;
  EXPECT_EQ(products->reorders().reorders, rounds ? 4 : 0);
  EXPECT_EQ(products->reorders().bytes, rounds ? 4 * 2 * s.out * s.patch() : 0);
}

TEST_P(ProductConvolution, TellsAnotherGeometryApart) {
  const auto& [c, dtype] = GetParam();
  if (dtype != DType::f32 || (c.shape.window.pad_h == 0 && c.shape.window.pad_w == 0)) return;
  const ConvShape s = with_outputs(c.shape, dtype);
  ConvShape moved = s;  // by one pixel
  if (s.window.pad_h > 0) {
    moved.window.pad_h -= 1;
    moved.window.extra_h += 2;
  } else {
    moved.window.pad_w -= 1;
    moved.window.extra_w += 2;
  }
  const std::unique_ptr<ConvBackend> products = cuda::make_product_conv();
  const Operands o = operands(s);
  const Results right = run(ctx, *products, s, o), wrong = run(ctx, *products, moved, o);
  EXPECT_FALSE(near(wrong.y, right.y, 0.01));
  EXPECT_FALSE(near(wrong.dx, right.dx, 0.01));
  EXPECT_FALSE(near(wrong.dw, right.dw, 0.01));
}

/// More than the scratch memory has room for, so in several parts.
TEST(ProductConvolutionParts, AddUpToTheWhole) {
  Context ctx{Device::cuda()}, cpu{Device::cpu()};
  // 64 KiB of patches in an image of f32, 50 of them: 4 parts of 13, 13, 13 and 11.
  const ConvShape s = with_outputs(
      {.n = 50,
       .h = 16,
       .w = 16,
       .in = 1,
       .out = 1,
       .window = {.kernel_h = 8, .kernel_w = 8, .pad_h = 3, .pad_w = 3, .extra_h = 1, .extra_w = 1},
       .bias = false},
      DType::f32);
  const std::unique_ptr<ConvBackend> products = cuda::make_product_conv(1 << 20);
  Tensor x = random_on_host(cpu, Shape{s.n, s.h, s.w, s.in}, s.dtype, 1);
  // Equal images give equal outputs wherever parts begin, and each as much of the gradient.
  for (std::int64_t n = 1; n < s.n; ++n) {
    ops::copy(cpu, x.view().slice(0, 0, 1), x.view().slice(0, n, 1));
  }
  const Tensor weight = to_device(ctx, random_on_host(cpu, Shape{1, 8, 8, 1}, s.dtype, 3));
  const Tensor images = to_device(ctx, x);
  Tensor y = Tensor::empty(ctx, x.shape(), s.dtype), dx = Tensor::empty(ctx, x.shape(), s.dtype);
  Tensor dw = Tensor::empty(ctx, weight.shape(), s.dtype),
         one = Tensor::empty(ctx, weight.shape(), s.dtype);
  products->forward(ctx, s, images, weight, {}, y);
  products->backward_data(ctx, s, y, weight, dx);
  products->backward_weights(ctx, s, images, y, dw, {});
  EXPECT_LE(ctx.scratch_bytes(), std::size_t{1} << 20);
  ConvShape single = s;
  single.n = 1;
  products->backward_weights(ctx, single, images.view().slice(0, 7, 1), y.view().slice(0, 7, 1),
                             one, {});
  for (const ConstTensorView& all : {ConstTensorView(y), ConstTensorView(dx)}) {
    const std::vector<double> v = device_values(ctx, all);
    const std::ptrdiff_t image = s.h * s.w;
    for (const std::ptrdiff_t n : {1, 12, 13, 14, 49}) {
      EXPECT_TRUE(std::equal(v.begin(), v.begin() + image, v.begin() + n * image));
    }
  }
  std::vector<double> expected = device_values(ctx, one);
  for (double& v : expected) v *= 50;
  // c = 2, n = the pixels of the batch.
  EXPECT_TRUE(near(device_values(ctx, dw), expected, 2 * 50 * 256 * spacing(DType::f32)));
}

class DeviceConv2d : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, DeviceConv2d, ::testing::ValuesIn(kActivationTypes),
                         name_of_dtype);

TEST_P(DeviceConv2d, LayersAreThoseOfTheHost) {
  ConvOptions grouped = ConvOptions::square(3, {.stride = 2, .pad = 1});
  grouped.groups = 4;
  ConvOptions frozen = ConvOptions::square(2, {});
  frozen.frozen = true;
  const ConvOptions same{
      .window = {.kernel_h = 4, .kernel_w = 3, .dilation_h = 2}, .same = true, .bias = false};
  for (const ConvOptions& o :
       {ConvOptions::square(3, {.pad = 1}), ConvOptions::square(1, {}), grouped, same, frozen}) {
    SCOPED_TRACE(Conv2d(8, 16, o).describe());
    BesideHost both([&] { return std::make_unique<Conv2d>(8, 16, o); }, GetParam());
    // n = 96 numbers in a patch at most, 120 pixels: c = 4. One more rounding of 16 bits.
    both.expect_alike(Shape{2, 10, 6, 8},
                      4 * 96 * spacing(compute_dtype(GetParam())) + spacing(GetParam()),
                      4 * 120 * spacing(compute_dtype(GetParam())));
  }
}

}  // namespace
}  // namespace dkfac::nn
