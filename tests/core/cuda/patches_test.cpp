// Convolution patches, their Gram matrices and small matrix operations on the device.
#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

#include "support/on_device.h"
#include "support/reference.h"

namespace dkfac {
namespace {

using ops::Layout;
using ops::PatchMethod;
using ops::PatchSpec;
using testing::Dense;
using testing::PaddedOnDevice;

/// Every kind of geometry: strides, zeros on either side, holes, kernels larger than the image,
/// points, whole images; and 3x3 images of any size for the method without patches.
std::vector<PatchSpec> specs(std::int64_t c) {
  std::vector<PatchSpec> out;
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
    for (const auto& [h, w] : {std::pair{1, 1}, {2, 2}, {1, 4}, {5, 6}, {9, 3}})
      out.push_back({3, h, w, c, {3, 3, 1, 1, 1, 1}, layout});
    out.push_back({3, 7, 4, c, {3, 2, 2, 1, 1, 0}, layout});
    out.push_back({1, 6, 9, c, {1, 5, 1, 3, 0, 2}, layout});
    out.push_back({2, 4, 4, c, {1, 1, 1, 1, 0, 0}, layout});
    out.push_back({2, 5, 5, c, {1, 1, 2, 2, 0, 0}, layout});
    out.push_back({2, 2, 3, c, {7, 5, 2, 2, 3, 3}, layout});
    out.push_back({4, 3, 2, c, {3, 2, 1, 1, 0, 0}, layout});
    out.push_back({2, 5, 6, c, {2, 4, 1, 1, 0, 1, 1, 1}, layout});
    out.push_back({2, 8, 9, c, {3, 3, 1, 1, 2, 2, 0, 0, 2, 2}, layout});
    out.push_back({2, 9, 7, c, {3, 2, 2, 1, 1, 0, 0, 2, 1, 3}, layout});
    out.push_back({2, 5, 4, c, {3, 3, 1, 1, 1, 1, 1, 0}, layout});
  }
  return out;
}

std::string describe(const PatchSpec& s) {
  return detail::concat(s.n, "x", s.h, "x", s.w, "x", s.c, " kernel ", s.window.kernel_h, "x",
                        s.window.kernel_w, " stride ", s.window.stride_h, ",", s.window.stride_w,
                        " pad ", s.window.pad_h, ",", s.window.pad_w, " extra ", s.window.extra_h,
                        ",", s.window.extra_w, " dilation ", s.window.dilation_h, ",",
                        s.window.dilation_w, s.layout == Layout::nhwc ? " nhwc" : " nchw");
}

Shape shape(const PatchSpec& s) {
  return s.layout == Layout::nhwc ? Shape{s.n, s.h, s.w, s.x_channels()}
                                  : Shape{s.n, s.x_channels(), s.h, s.w};
}

/// Integers: their products and sums are exact in every dtype.
std::vector<double> integers(const PatchSpec& s, Random& random) {
  return testing::random_integers(1, shape(s).numel(), random).data;
}

/// Channels [first, first + count) alone, in the same layout.
std::vector<double> channels(const PatchSpec& s, const std::vector<double>& x, std::int64_t first,
                             std::int64_t count) {
  std::vector<double> out;
  const std::int64_t area = s.layout == Layout::nhwc ? 1 : s.h * s.w;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::int64_t c = static_cast<std::int64_t>(i) / area % s.x_channels();
    if (c >= first && c < first + count) out.push_back(x[i]);
  }
  return out;
}

Dense gram_of(const Dense& rows, double alpha, double beta = 0, const Dense& before = {}) {
  return testing::lower(testing::naive_gemm(alpha, testing::transpose(rows), rows, beta, before));
}

/// Over the dtypes of images. Sums are f64 for f64 and f32 otherwise.
class CudaPatches : public testing::OnDevice {
 protected:
  [[nodiscard]] DType sums() const { return dtype() == DType::f64 ? DType::f64 : DType::f32; }
  [[nodiscard]] Tensor tensor(const std::vector<double>& values, Shape shape, DType type) {
    Tensor host = Tensor::empty(cpu, shape, type);
    if (host.view().numel() > 0) ops::cast(cpu, view_of(values.data(), shape), host);
    return testing::to_device(ctx, host);
  }
  [[nodiscard]] Tensor image(const PatchSpec& s, const std::vector<double>& values) {
    return tensor(values, shape(s), dtype());
  }
  /// c on the device with the lower triangle of `values` and NaN above and in its gaps.
  [[nodiscard]] PaddedOnDevice lower(const Dense& values) {
    Dense all = values;
    for (std::int64_t i = 0; i < all.rows; ++i)
      for (std::int64_t j = i + 1; j < all.cols; ++j) all(i, j) = std::nan("");
    return {ctx, tensor(all.data, {all.rows, all.cols}, sums()).view()};
  }
  [[nodiscard]] PaddedOnDevice poison(std::int64_t d) { return {ctx, sums(), d, d}; }
  /// The lower triangle; what is not NaN above it or in the gaps is an error.
  [[nodiscard]] Dense triangle(PaddedOnDevice& c) {
    Dense out(c.view().dim(0), c.view().dim(1));
    out.data = c.values(ctx);
    for (std::int64_t i = 0; i < out.rows; ++i)
      for (std::int64_t j = i + 1; j < out.cols; ++j)
        EXPECT_TRUE(std::isnan(out(i, j))) << "written at " << i << ", " << j;
    EXPECT_TRUE(c.gaps_untouched(ctx));
    return testing::lower(out);
  }
};
INSTANTIATE_TEST_SUITE_P(DTypes, CudaPatches,
                         ::testing::Values(DType::f64, DType::f32, DType::bf16, DType::f16),
                         testing::name_of_dtype);

TEST_P(CudaPatches, FollowTheDefinitionOfConvolution) {
  Random random(1);
  for (const std::int64_t c : {3, 8}) {  // one channel and a word of them at a time
    for (const PatchSpec& s : specs(c)) {
      const auto x = integers(s, random);
      PaddedOnDevice patches(ctx, dtype(), s.rows(), s.width());
      ops::im2col(ctx, s, image(s, x), patches.view());
      EXPECT_EQ(patches.values(ctx), testing::naive_im2col(s, x).data) << describe(s);
      EXPECT_TRUE(patches.gaps_untouched(ctx)) << describe(s);
    }
  }
}

TEST_P(CudaPatches, GramIsTheSumOverPatchesByEveryMethodWithAndWithoutBias) {
  Random random(2);
  for (const PatchSpec& s : specs(3)) {
    const auto x = integers(s, random);
    const Tensor view = image(s, x);
    for (const auto method : {PatchMethod::automatic, PatchMethod::panels, PatchMethod::offsets}) {
      if (!ops::patch_method_applies(ctx, s, dtype(), method)) continue;
      for (const bool bias : {false, true}) {
        const Dense p = testing::naive_im2col(s, x), rows = bias ? testing::with_ones(p) : p;
        const Dense before = testing::random_integers(rows.cols, rows.cols, random);
        PaddedOnDevice c = lower(before);
        ops::patch_gram(ctx, s, 0.5, view, -2, c.view(), method);
        EXPECT_EQ(triangle(c).data, gram_of(rows, 0.5, -2, before).data)
            << describe(s) << " method " << static_cast<int>(method) << " bias " << bias;
        PaddedOnDevice fresh = poison(rows.cols);  // beta = 0 does not read
        ops::patch_gram(ctx, s, 2, view, 0, fresh.view(), method);
        EXPECT_EQ(triangle(fresh).data, gram_of(rows, 2).data) << describe(s);
      }
    }
  }
}

TEST_P(CudaPatches, OfARangeOfChannelsAreThoseOfTheChannelsAlone) {
  Random random(3);
  for (PatchSpec s : specs(2)) {
    s.x_c = 7;
    s.first_c = 4;
    const auto x = integers(s, random);
    PatchSpec alone = s;
    alone.x_c = alone.first_c = 0;
    const Dense rows = testing::with_ones(testing::naive_im2col(alone, channels(s, x, 4, 2)));
    const Tensor view = image(s, x);
    PaddedOnDevice c = poison(rows.cols);
    ops::patch_gram(ctx, s, 1, view, 0, c.view());
    EXPECT_EQ(triangle(c).data, gram_of(rows, 1).data) << describe(s);
    s.first_c = 3;  // control: other channels are others
    PaddedOnDevice other = poison(rows.cols);
    ops::patch_gram(ctx, s, 1, view, 0, other.view());
    EXPECT_NE(triangle(other).data, gram_of(rows, 1).data) << describe(s);
  }
}

TEST_P(CudaPatches, GramOfGroupsIsTheGramOfEach) {
  Random random(4);
  for (const PatchSpec& s : specs(6)) {
    const auto x = integers(s, random);
    const Tensor view = image(s, x);
    for (const std::int64_t groups : {1, 2, 6}) {
      for (const bool bias : {false, true}) {
        PatchSpec one = s;
        one.c = s.c / groups;
        const std::int64_t d = one.width() + (bias ? 1 : 0);
        const Dense twos = testing::make_dense(d, d, [](auto, auto) { return 2.0; });
        Tensor c = Tensor::empty(ctx, {groups, d, d}, sums());
        ops::fill(ctx, c, 2);
        ops::patch_gram(ctx, s, 0.5, view, -2, c);
        for (std::int64_t g = 0; g < groups; ++g) {
          const Dense p = testing::naive_im2col(one, channels(s, x, g * one.c, one.c));
          Dense found(d, d);
          found.data = testing::device_values(ctx, c.view().slice(0, g, 1));
          ASSERT_EQ(testing::lower(found).data,
                    gram_of(bias ? testing::with_ones(p) : p, 0.5, -2, twos).data)
              << g << " of " << groups << ": " << describe(s);
          for (std::int64_t i = 0; i + 1 < d; ++i) ASSERT_EQ(found(i, d - 1), 2) << "upper";
        }
      }
    }
  }
}

TEST_P(CudaPatches, GramOfGroupsWithoutChannelsIsTheNumberOfRows) {
  const PatchSpec s{.n = 3, .h = 4, .w = 5, .c = 0};
  Tensor c = Tensor::zeros(ctx, {2, 1, 1}, sums());
  ops::patch_gram(ctx, s, 0.5, Tensor::empty(ctx, {3, 4, 5, 0}, dtype()), 0, c);
  EXPECT_EQ(testing::device_values(ctx, c), (std::vector<double>{30, 30}));
}

TEST_P(CudaPatches, SumsAreThoseOfTheColumnsOfEachSample) {
  Random random(5);
  for (const PatchSpec& s : specs(3)) {
    const auto x = integers(s, random);
    const Dense p = testing::naive_im2col(s, x);
    const std::int64_t count = s.out_h() * s.out_w();
    Dense expected(s.n, s.width());
    for (std::int64_t r = 0; r < p.rows; ++r)
      for (std::int64_t c = 0; c < p.cols; ++c) expected(r / count, c) += 0.5 * p(r, c);
    PaddedOnDevice found(ctx, sums(), s.n, s.width());
    ops::patch_sum(ctx, s, 0.5, image(s, x), found.view());
    EXPECT_EQ(found.values(ctx), expected.data) << describe(s);
    EXPECT_TRUE(found.gaps_untouched(ctx));
  }
}

TEST_P(CudaPatches, GramOfRowsOfAnyShapeAndStride) {
  Random random(6);
  for (const auto& [n, w] :
       {std::pair{1, 1}, {3, 2}, {2, 5}, {1601, 3}, {37, 130}, {3, 1030}, {1, 1600}}) {
    const Dense x = testing::random_integers(n, w, random);
    PaddedOnDevice view(ctx, tensor(x.data, {n, w}, dtype()).view());
    for (const bool bias : {false, true}) {
      const Dense rows = bias ? testing::with_ones(x) : x;
      const Dense before = testing::make_dense(rows.cols, rows.cols, [](auto, auto) { return 3.; });
      PaddedOnDevice c = lower(before);
      ops::gram(ctx, 0.25, view.view(), 2, c.view());
      EXPECT_EQ(triangle(c).data, gram_of(rows, 0.25, 2, before).data) << n << "x" << w;
      PaddedOnDevice fresh = poison(rows.cols);
      ops::gram(ctx, 1, view.view(), 0, fresh.view());
      EXPECT_EQ(triangle(fresh).data, gram_of(rows, 1).data) << n << "x" << w;
    }
  }
}

TEST_P(CudaPatches, StayWithinRoundingOverRealNumbers) {
  Random random(7);
  for (const PatchSpec& s : {PatchSpec{9, 13, 11, 8, {3, 3, 1, 1, 1, 1}, Layout::nhwc},
                             PatchSpec{5, 10, 12, 6, {5, 5, 1, 1, 2, 2}, Layout::nchw}}) {
    Tensor x = Tensor::empty(cpu, shape(s), dtype());
    {
      const Dense values = testing::random_dense(1, shape(s).numel(), random);
      ops::cast(cpu, view_of(values.data.data(), shape(s)), x);
    }
    const Dense p = testing::with_ones(testing::naive_im2col(s, testing::values(cpu, x)));
    const double alpha = 1.0 / static_cast<double>(s.rows());
    // Products are exact and sums f64 or f32 (16-bit values have been rounded before): f64 1e-12
    // as promised; f32 a sum of rows() terms, c = 0.1 for the random signs of its errors.
    const double tolerance =
        dtype() == DType::f64 ? 1e-12 : 0.1 * static_cast<double>(s.rows()) * 1.2e-7;
    for (const auto method : {PatchMethod::panels, PatchMethod::offsets}) {
      if (!ops::patch_method_applies(ctx, s, dtype(), method)) continue;
      PaddedOnDevice c = poison(p.cols);
      ops::patch_gram(ctx, s, alpha, testing::to_device(ctx, x), 0, c.view(), method);
      const Dense found = triangle(c);
      EXPECT_TRUE(testing::near(found.data, gram_of(p, alpha).data, tolerance));
      PaddedOnDevice again = poison(p.cols);
      ops::patch_gram(ctx, s, alpha, testing::to_device(ctx, x), 0, again.view(), method);
      EXPECT_EQ(triangle(again).data, found.data) << "the order of sums is not fixed";
    }
  }
}

TEST(CudaGram, IsNeverRoundedToTf32) {
  Context exact(Device::cuda()), rounding(Device::cuda(), {.tf32 = true});
  const PatchSpec s{2, 4, 4, 2, {3, 3, 1, 1, 1, 1}, Layout::nhwc};
  const auto same = [&](const Shape& from, const Shape& shape, auto&& f) {
    std::vector<std::vector<double>> found;
    for (Context* ctx : {&exact, &rounding}) {
      Tensor x = Tensor::empty(*ctx, from), c = Tensor::empty(*ctx, shape);
      ops::fill(*ctx, x, 1 + 0x1p-12);  // TF32 has ten bits after the leading one
      ops::fill(*ctx, c, 0);
      f(*ctx, x.view(), c.view());
      found.push_back(testing::device_values(*ctx, c));
    }
    return found[0] == found[1];
  };
  const auto by = [&](PatchMethod method) {
    return [&s, method](Context& ctx, TensorView x, TensorView c) {
      ops::patch_gram(ctx, s, 1, x, 0, c, method);
    };
  };
  const Shape image{2, 4, 4, 2}, square{256, 256};
  EXPECT_TRUE(same(image, {19, 19}, by(PatchMethod::panels)));
  EXPECT_TRUE(same(image, {19, 19}, by(PatchMethod::offsets)));
  EXPECT_TRUE(same(image, {2, 10, 10}, by(PatchMethod::automatic)));
  // Large and aligned: cuBLAS may compute others in full.
  const auto product = [](Context& ctx, TensorView x, TensorView c) {
    ops::gemm(ctx, ops::Trans::yes, ops::Trans::no, 1, x, x, 0, c);
  };
  EXPECT_FALSE(same(square, square, product)) << "control: gemm rounds where it is asked to";
}

TEST_P(CudaPatches, NothingComesOfNothing) {
  const PatchSpec none{0, 5, 5, 2, {3, 3, 1, 1, 1, 1}, Layout::nhwc};
  const Tensor empty = image(none, {});
  const Dense before =
      testing::make_dense(19, 19, [](auto i, auto j) { return static_cast<double>(1 + i + j); });
  PaddedOnDevice c = lower(before);
  ops::patch_gram(ctx, none, 1, empty, 0.5, c.view());
  EXPECT_EQ(triangle(c)(18, 4), 11.5);
  PaddedOnDevice zero = poison(19);
  ops::patch_gram(ctx, none, 1, empty, 0, zero.view());
  EXPECT_EQ(triangle(zero).data, Dense(19, 19).data);
  const PatchSpec thin{2, 5, 5, 0, {3, 3, 1, 1, 1, 1}, Layout::nhwc};
  PaddedOnDevice corner = poison(1);
  ops::patch_gram(ctx, thin, 1, image(thin, {}), 0, corner.view());
  EXPECT_EQ(triangle(corner)(0, 0), 50);
}

TEST_P(CudaPatches, NeverMakeTheHostWait) {
  Random random(8);
  const PatchSpec s{4, 6, 5, 8, {3, 3, 1, 1, 1, 1}, Layout::nhwc};
  const Tensor x = image(s, integers(s, random));
  Tensor c = Tensor::empty(ctx, {73, 73}, sums()), sum = Tensor::empty(ctx, {4, 72}, sums());
  Tensor groups = Tensor::empty(ctx, {2, 36, 36}, sums());
  ops::patch_gram(ctx, s, 1, x, 0, c, PatchMethod::panels);  // takes scratch and handles
  const std::int64_t before = testing::host_waits();
  ops::patch_gram(ctx, s, 1, x, 0, c, PatchMethod::panels);
  ops::patch_gram(ctx, s, 1, x, 0, c, PatchMethod::offsets);
  ops::patch_gram(ctx, s, 1, x, 0, groups);
  ops::patch_sum(ctx, s, 1, x, sum);
  ops::symmetrize(ctx, c);
  ops::add_diagonal(ctx, c, 1);
  EXPECT_EQ(testing::host_waits(), before);
}

TEST_P(CudaPatches, RefuseTheSumsOfAnotherDtypeAndMethodsThatDoNotApply) {
  const PatchSpec s{1, 4, 4, 2, {3, 3, 1, 1, 1, 1}, Layout::nhwc};
  const Tensor x = Tensor::zeros(ctx, shape(s), dtype());
  const DType wrong = dtype() == DType::f64 ? DType::f32 : DType::f64;
  EXPECT_THROW(ops::patch_gram(ctx, s, 1, x, 0, Tensor::empty(ctx, {18, 18}, wrong)),
               InvalidArgument);
  EXPECT_THROW(ops::patch_gram(ctx, s, 1, x, 0, Tensor::empty(ctx, {18, 18}, sums()),
                               PatchMethod::correlation),
               InvalidArgument);
  PatchSpec strided = s;
  strided.window.stride_h = 2;
  EXPECT_FALSE(ops::patch_method_applies(ctx, strided, dtype(), PatchMethod::offsets));
  if (dtype() == DType::f64 || dtype() == DType::f32) return;
  Tensor host = Tensor::zeros(cpu, shape(s), dtype());
  EXPECT_THROW(ops::patch_gram(cpu, s, 1, host, 0, Tensor::empty(cpu, {18, 18}, DType::f32)),
               InvalidArgument);
}

class CudaMatrices : public CudaPatches {};
DKFAC_ON_DEVICE(CudaMatrices);

TEST_P(CudaMatrices, MirrorAndShiftTheirDiagonal) {
  Random random(9);
  for (const std::int64_t d : {1, 2, 31, 33, 70}) {
    const Dense values = testing::random_integers(d, d, random);
    PaddedOnDevice a = lower(values);
    ops::symmetrize(ctx, a.view());
    ops::add_diagonal(ctx, a.view(), 0.5);
    const Dense expected = testing::make_dense(d, d, [&](auto i, auto j) {
      return values(std::max(i, j), std::min(i, j)) + (i == j ? 0.5 : 0.0);
    });
    EXPECT_EQ(a.values(ctx), expected.data) << d;
    EXPECT_TRUE(a.gaps_untouched(ctx));
  }
}

TEST_P(CudaMatrices, AreScaledWhereThereIsNothingToAdd) {
  PaddedOnDevice c = lower(
      testing::make_dense(3, 3, [](auto i, auto j) { return static_cast<double>(4 * i + j); }));
  ops::gram(ctx, 0, Tensor::zeros(ctx, {5, 3}, dtype()), 0.5, c.view());
  EXPECT_EQ(triangle(c)(2, 1), 4.5);
  PaddedOnDevice product(ctx, dtype(), 2, 3);
  ops::gemm(ctx, ops::Trans::no, ops::Trans::no, 1, Tensor::empty(ctx, {2, 0}, dtype()),
            Tensor::empty(ctx, {0, 3}, dtype()), 0, product.view());
  EXPECT_EQ(product.values(ctx), std::vector<double>(6, 0.0));
}

}  // namespace
}  // namespace dkfac
