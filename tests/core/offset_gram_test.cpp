#include "core/cpu/offset_gram.h"

#include <array>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/tensor.h"
#include "dkfac/core/threads.h"

#include "core/cpu/patch_method.h"
#include "core/cpu/self_correlation.h"
#include "support/each_backend.h"
#include "support/near.h"
#include "support/padded.h"
#include "support/reference.h"

namespace dkfac {
namespace {

using ops::Layout;
using ops::PatchMethod;
using ops::PatchSpec;
using testing::Dense;
using testing::Padded;

PatchSpec three_by_three(std::int64_t n, std::int64_t h, std::int64_t w, std::int64_t c,
                         Layout layout) {
  return {n, h, w, c, {3, 3, 1, 1, 1, 1}, layout};
}

class OffsetGram : public testing::EachBackend {
 protected:
  Tensor image(const PatchSpec& s, const std::vector<double>& values) {
    const bool nhwc = s.layout == Layout::nhwc;
    Tensor x =
        Tensor::empty(ctx, nhwc ? Shape{s.n, s.h, s.w, s.c} : Shape{s.n, s.c, s.h, s.w}, dtype());
    ops::cast(ctx, view_of(values.data(), x.shape()), x);
    return x;
  }
};
DKFAC_EACH_BACKEND(OffsetGram);

TEST_P(OffsetGram, IsExactOnIntegersForImagesOfAnySize) {
  Random random(1);
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
    for (const auto& [h, w] : {std::pair{1, 1}, {1, 4}, {2, 2}, {3, 1}, {2, 5}, {6, 4}, {9, 9}}) {
      for (const std::int64_t channels : {1, 5}) {
        const PatchSpec s = three_by_three(3, h, w, channels, layout);
        const auto x = testing::random_integers(1, s.n * h * w * channels, random).data;
        const Dense p = testing::naive_im2col(s, x);
        const Dense c0 = testing::random_integers(p.cols, p.cols, random);
        Padded c = Padded::lower(dtype(), c0);
        cpu::offset_gram(ctx, s, 0.5, image(s, x), -2, c.view());
        const Dense expected = testing::naive_gemm(0.5, testing::transpose(p), p, -2, c0);
        EXPECT_EQ(testing::lower(c.values()).data, testing::lower(expected).data)
            << h << "x" << w << "x" << channels << " nchw " << int(layout == Layout::nchw);
        EXPECT_TRUE(c.upper_untouched());
      }
    }
  }
}

TEST_P(OffsetGram, SumsTheColumnsForABiasAndLeavesItsCornerAlone) {
  Random random(2);
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
    for (const auto& [h, w] : {std::pair{1, 1}, {4, 3}, {7, 8}}) {
      const PatchSpec s = three_by_three(2, h, w, 3, layout);
      const auto x = testing::random_integers(1, s.n * h * w * s.c, random).data;
      const Dense p = testing::with_ones(testing::naive_im2col(s, x));
      Padded c(dtype(), p.cols, p.cols);
      c.set(27, 27, 5);
      cpu::offset_gram(ctx, s, 1, image(s, x), 0, c.view());
      Dense expected = testing::lower(testing::multiply(testing::transpose(p), p));
      expected(27, 27) = 5;
      EXPECT_EQ(testing::lower(c.values()).data, expected.data) << h << "x" << w;
      EXPECT_TRUE(c.upper_untouched());
    }
  }
}

TEST_P(OffsetGram, IsExactOnIntegersOverChunksAndThreads) {
  Random random(3);
  const PatchSpec s = three_by_three(41, 13, 10, 2, Layout::nhwc);  // chunks of 11 samples or more
  const auto x = testing::random_integers(1, s.n * s.h * s.w * s.c, random).data;
  const Dense p = testing::with_ones(testing::naive_im2col(s, x));
  Dense expected = testing::lower(testing::multiply(testing::transpose(p), p));
  const int before = threads();
  for (const int count : {1, 2, 4}) {
    set_threads(count);
    Padded c(dtype(), p.cols, p.cols);
    c.set(18, 18, expected(18, 18));
    cpu::offset_gram(ctx, s, 1, image(s, x), 0, c.view());
    EXPECT_EQ(testing::lower(c.values()).data, expected.data) << count;
  }
  set_threads(before);
}

TEST_P(OffsetGram, StaysWithinRoundingThroughThePublicOperation) {
  Random random(4);
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
    const PatchSpec s = three_by_three(6, 16, 16, 8, layout);
    const auto values = testing::random_dense(1, s.n * s.h * s.w * s.c, random, 0, 1).data;
    const Tensor x = image(s, values);
    const Dense p = testing::with_ones(testing::naive_im2col(s, testing::values(ctx, x)));
    const double alpha = 1.0 / static_cast<double>(s.rows());
    Padded c(dtype(), p.cols, p.cols);
    ops::patch_gram(ctx, s, alpha, x, 0, c.view(), PatchMethod::offsets);
    const Dense expected = testing::lower(testing::naive_gemm(alpha, testing::transpose(p), p));
    // c = 1 with n = rows() terms; in f64 below 1e-12 as promised.
    const double tolerance =
        dtype() == DType::f64 ? 1e-12 : static_cast<double>(s.rows()) * epsilon();
    EXPECT_TRUE(testing::near(testing::lower(c.values()).data, expected.data, tolerance));
    // Control: without the corrections of the border all diagonal blocks would be equal.
    const std::int64_t centre = layout == Layout::nhwc ? 4 * 8 : 4;
    EXPECT_GT(c.get(centre, centre) - c.get(0, 0), 100 * tolerance);
  }
}

TEST_P(OffsetGram, ByOnednnStaysWithinRounding) {
  Random random(5);
  for (const auto& [n, h, w, c] :
       {std::array{3, 7, 5, 4}, {5, 2, 2, 33}, {70, 11, 12, 16}, {2, 1, 3, 8}, {1, 16, 16, 32}}) {
    const PatchSpec s = three_by_three(n, h, w, c, Layout::nhwc);
    if (!ops::patch_method_applies(ctx, s, dtype(), PatchMethod::correlation)) {
      EXPECT_TRUE(dtype() == DType::f64 || !cpu::has_self_correlation());
      Padded refused(dtype(), s.width(), s.width());
      const Tensor x = Tensor::zeros(ctx, {n, h, w, c}, dtype());
      EXPECT_THROW(ops::patch_gram(ctx, s, 1, x, 0, refused.view(), PatchMethod::correlation),
                   InvalidArgument);
      continue;
    }
    const auto values = testing::random_dense(1, s.n * s.h * s.w * s.c, random, 0, 1).data;
    const Tensor x = image(s, values);
    const Dense p = testing::with_ones(testing::naive_im2col(s, testing::values(ctx, x)));
    const double alpha = 1.0 / static_cast<double>(s.rows());
    const Dense c0 = testing::random_dense(p.cols, p.cols, random);
    Padded found = Padded::lower(dtype(), c0);
    ops::patch_gram(ctx, s, alpha, x, 0.5, found.view(), PatchMethod::correlation);
    const Dense expected =
        testing::lower(testing::naive_gemm(alpha, testing::transpose(p), p, 0.5, c0));
    // c = 8 with n = 70 terms, about the root of the longest sum of one sub-batch.
    EXPECT_TRUE(
        testing::near(testing::lower(found.values()).data, expected.data, 8 * 70 * epsilon()))
        << h << "x" << w << "x" << c;
    EXPECT_TRUE(found.upper_untouched());
  }
}

TEST_P(OffsetGram, AllMethodsAgree) {
  Random random(6);
  const PatchSpec s = three_by_three(9, 8, 8, 64, Layout::nhwc);
  const Tensor x = image(s, testing::random_dense(1, s.n * 64 * 64, random, 0, 1).data);
  const double alpha = 1.0 / static_cast<double>(s.rows());
  std::vector<std::vector<double>> found;
  for (const PatchMethod method : {PatchMethod::panels, PatchMethod::offsets,
                                   PatchMethod::correlation, PatchMethod::automatic}) {
    if (!ops::patch_method_applies(ctx, s, dtype(), method)) continue;
    Padded c(dtype(), s.width(), s.width());
    ops::patch_gram(ctx, s, alpha, x, 0, c.view(), method);
    found.push_back(testing::lower(c.values()).data);
    // c = 1 with n = rows() terms.
    EXPECT_TRUE(
        testing::near(found.back(), found.front(), static_cast<double>(s.rows()) * epsilon()))
        << static_cast<int>(method);
  }
  EXPECT_GE(found.size(), 3U);
}

TEST_P(OffsetGram, EveryMethodStopsGrowingItsScratch) {
  const PatchSpec s = three_by_three(4, 8, 8, 16, Layout::nhwc);
  const Tensor x = Tensor::zeros(ctx, {4, 8, 8, 16}, dtype());
  Tensor c = Tensor::zeros(ctx, {s.width(), s.width()}, dtype());
  for (const PatchMethod method :
       {PatchMethod::panels, PatchMethod::offsets, PatchMethod::correlation}) {
    if (!ops::patch_method_applies(ctx, s, dtype(), method)) continue;
    for (int i = 0; i < 2; ++i) ops::patch_gram(ctx, s, 1, x, 0, c, method);
    const std::int64_t before = ctx.scratch_growths();
    ops::patch_gram(ctx, s, 1, x, 0, c, method);
    EXPECT_EQ(ctx.scratch_growths(), before) << static_cast<int>(method);
  }
}

TEST(PatchMethodChoice, TakesPatchesWhereTheOthersDoNotApplyOrDoNotPay) {
  const auto fastest = [](const PatchSpec& s, DType dtype) {
    return cpu::fastest_method(Backend::fast, s, dtype);
  };
  const PatchSpec good = three_by_three(8, 16, 16, 32, Layout::nhwc);
  EXPECT_NE(fastest(good, DType::f32), PatchMethod::panels);
  EXPECT_EQ(fastest(good, DType::f64), PatchMethod::offsets);
  EXPECT_EQ(cpu::fastest_method(Backend::reference, good, DType::f32), PatchMethod::panels);
  for (const auto& spoil : std::vector<void (*)(PatchSpec&)>{
           [](PatchSpec& s) { s.window.kernel_h = 5; }, [](PatchSpec& s) { s.window.kernel_w = 1; },
           [](PatchSpec& s) { s.window.stride_h = 2; }, [](PatchSpec& s) { s.window.stride_w = 2; },
           [](PatchSpec& s) { s.window.pad_h = 0; }, [](PatchSpec& s) { s.window.pad_w = 2; },
           [](PatchSpec& s) { s.window.extra_h = 1; },
           [](PatchSpec& s) { s.window.dilation_w = 2; }}) {
    PatchSpec s = good;
    spoil(s);
    EXPECT_EQ(fastest(s, DType::f32), PatchMethod::panels);
    EXPECT_FALSE(cpu::applies(s, DType::f32, PatchMethod::offsets));
    EXPECT_FALSE(cpu::applies(s, DType::f32, PatchMethod::correlation));
  }
  EXPECT_EQ(fastest(three_by_three(8, 2, 2, 512, Layout::nhwc), DType::f32), PatchMethod::panels);
}

TEST(PatchMethodChoice, LeavesOtherLayoutsAndPartsOfImagesToOurOwnLoops) {
  PatchSpec s = three_by_three(8, 8, 8, 256, Layout::nhwc);
  EXPECT_EQ(cpu::applies(s, DType::f32, PatchMethod::correlation), cpu::has_self_correlation());
  s.layout = Layout::nchw;
  EXPECT_FALSE(cpu::applies(s, DType::f32, PatchMethod::correlation));
  EXPECT_TRUE(cpu::applies(s, DType::f32, PatchMethod::offsets));
  s.layout = Layout::nhwc;
  s.x_c = 512;
  EXPECT_FALSE(cpu::applies(s, DType::f32, PatchMethod::correlation));
  EXPECT_TRUE(cpu::applies(s, DType::f32, PatchMethod::offsets));
}

}  // namespace
}  // namespace dkfac
