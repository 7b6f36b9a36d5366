#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/ops.h"
#include "dkfac/core/tensor.h"
#include "dkfac/core/threads.h"

#include "support/each_backend.h"
#include "support/near.h"
#include "support/padded.h"
#include "support/reference.h"

namespace dkfac {
namespace {

using ops::Layout;
using ops::PatchSpec;
using testing::Dense;
using testing::Padded;

/// Both layouts of strides, paddings, kernels wider than high, images smaller than the kernel.
std::vector<PatchSpec> specs() {
  std::vector<PatchSpec> out;
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
    out.push_back({2, 5, 6, 3, {3, 3, 1, 1, 1, 1}, layout});
    out.push_back({3, 7, 4, 2, {3, 2, 2, 1, 1, 0}, layout});
    out.push_back({1, 6, 9, 4, {1, 5, 1, 3, 0, 2}, layout});
    out.push_back({2, 4, 4, 5, {1, 1, 1, 1, 0, 0}, layout});
    out.push_back({2, 5, 5, 5, {1, 1, 2, 2, 0, 0}, layout});
    out.push_back({2, 3, 3, 2, {1, 1, 1, 1, 1, 1}, layout});
    out.push_back({2, 2, 3, 1, {7, 5, 2, 2, 3, 3}, layout});
    out.push_back({4, 1, 1, 6, {3, 3, 1, 1, 1, 1}, layout});
    out.push_back({1, 8, 8, 3, {4, 4, 4, 4, 0, 0}, layout});
    // Zeros after the image alone, kernels with holes, and both.
    out.push_back({2, 5, 6, 3, {2, 4, 1, 1, 0, 1, 1, 1}, layout});
    out.push_back({2, 3, 4, 5, {1, 1, 1, 1, 0, 0, 2, 1}, layout});
    out.push_back({2, 5, 4, 9, {3, 3, 1, 1, 1, 1, 1, 0}, layout});
    out.push_back({2, 8, 9, 2, {3, 3, 1, 1, 2, 2, 0, 0, 2, 2}, layout});
    out.push_back({2, 9, 8, 9, {3, 3, 1, 1, 1, 1, 0, 0, 2, 1}, layout});
    out.push_back({1, 9, 7, 3, {3, 2, 2, 1, 1, 0, 0, 2, 1, 3}, layout});
    out.push_back({2, 2, 2, 3, {3, 3, 1, 2, 4, 3, 1, 1, 4, 3}, layout});
    // Without these the method without patches would be chosen.
    out.push_back({1, 16, 16, 8, {3, 3, 1, 1, 1, 1, 0, 1}, layout});
    out.push_back({1, 16, 16, 8, {3, 3, 1, 1, 1, 1, 0, 0, 2, 1}, layout});
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

class Patches : public testing::EachBackend {
 protected:
  /// x of a spec, with `values` in memory order.
  Tensor image(const PatchSpec& s, const std::vector<double>& values) {
    Tensor x = Tensor::empty(ctx, shape(s), dtype());
    ops::cast(ctx, view_of(values.data(), x.shape()), x);
    return x;
  }
  static Shape shape(const PatchSpec& s) {
    return s.layout == Layout::nhwc ? Shape{s.n, s.h, s.w, s.c} : Shape{s.n, s.c, s.h, s.w};
  }
  static std::vector<double> integers(const PatchSpec& s, Random& random) {
    return testing::random_integers(1, s.n * s.h * s.w * s.c, random).data;
  }
};
DKFAC_EACH_BACKEND(Patches);

TEST_P(Patches, FollowTheDefinitionOfConvolution) {
  Random random(1);
  for (const PatchSpec& s : specs()) {
    const std::vector<double> x = integers(s, random);
    Padded patches(dtype(), s.rows(), s.width());
    ops::im2col(ctx, s, image(s, x), patches.view());
    EXPECT_EQ(patches.values().data, testing::naive_im2col(s, x).data) << describe(s);
    EXPECT_TRUE(patches.gaps_untouched()) << describe(s);
  }
}

TEST_P(Patches, OrderTheirColumnsByLayout) {
  // One patch that is the whole image 2x2 with 3 channels: element (h, w, c) is 100 h + 10 w + c.
  const auto row = [&](Layout layout) {
    const PatchSpec s{1, 2, 2, 3, {2, 2, 1, 1, 0, 0}, layout};
    std::vector<double> x;
    for (int i = 0; i < 12; ++i) {
      const int h = layout == Layout::nhwc ? i / 6 : i / 2 % 2;
      const int w = layout == Layout::nhwc ? i / 3 % 2 : i % 2;
      const int c = layout == Layout::nhwc ? i % 3 : i / 4;
      x.push_back(100 * h + 10 * w + c);
    }
    Padded patches(dtype(), 1, 12);
    ops::im2col(ctx, s, image(s, x), patches.view());
    return patches.values().data;
  };
  const std::vector<double> nhwc{0, 1, 2, 10, 11, 12, 100, 101, 102, 110, 111, 112};
  const std::vector<double> nchw{0, 10, 100, 110, 1, 11, 101, 111, 2, 12, 102, 112};
  EXPECT_EQ(row(Layout::nhwc), nhwc);
  EXPECT_EQ(row(Layout::nchw), nchw);
}

TEST_P(Patches, GramIsTheSumOverPatchesWithAndWithoutBias) {
  Random random(2);
  for (const PatchSpec& s : specs()) {
    const std::vector<double> x = integers(s, random);
    for (const bool bias : {false, true}) {
      const Dense p = testing::naive_im2col(s, x);
      const Dense rows = bias ? testing::with_ones(p) : p;
      const Dense c0 = testing::random_integers(rows.cols, rows.cols, random);
      Padded c = Padded::lower(dtype(), c0);
      ops::patch_gram(ctx, s, 0.5, image(s, x), 2, c.view());
      const Dense expected = testing::naive_gemm(0.5, testing::transpose(rows), rows, 2, c0);
      EXPECT_EQ(testing::lower(c.values()).data, testing::lower(expected).data)
          << describe(s) << " bias " << bias;
      EXPECT_TRUE(c.upper_untouched()) << describe(s);
    }
  }
}

TEST_P(Patches, GramOverManyPanelsStaysWithinRounding) {
  Random random(3);
  for (const PatchSpec& s : {PatchSpec{3, 30, 30, 8, {5, 5, 1, 1, 2, 2}, Layout::nhwc},
                             PatchSpec{3, 30, 30, 8, {5, 5, 1, 1, 2, 2}, Layout::nchw},
                             PatchSpec{9, 33, 31, 3, {3, 3, 1, 1, 1, 1}, Layout::nhwc}}) {
    Tensor x = Tensor::empty(ctx, shape(s), dtype());
    fill_uniform(x, -1, 1, random);
    const Dense p = testing::with_ones(testing::naive_im2col(s, testing::values(ctx, x)));
    const double alpha = 1.0 / static_cast<double>(s.rows());
    Padded c(dtype(), p.cols, p.cols);
    ops::patch_gram(ctx, s, alpha, x, 0, c.view());
    const Dense expected = testing::lower(testing::naive_gemm(alpha, testing::transpose(p), p));
    // In f64 1e-12 as promised; in f32 c = 1 with n = rows() terms.
    const double tolerance =
        dtype() == DType::f64 ? 1e-12 : static_cast<double>(s.rows()) * epsilon();
    EXPECT_TRUE(testing::near(testing::lower(c.values()).data, expected.data, tolerance));
    EXPECT_EQ(c.get(p.cols - 1, p.cols - 1), 1);
    EXPECT_TRUE(c.upper_untouched());
  }
}

TEST_P(Patches, GramDependsOnTheLayout) {
  // Negative control: the same patches in the other column order are another matrix.
  Random random(4);
  const PatchSpec nhwc{2, 5, 5, 3, {3, 3, 1, 1, 1, 1}, Layout::nhwc};
  PatchSpec nchw = nhwc;
  nchw.layout = Layout::nchw;
  const std::vector<double> x = integers(nhwc, random);
  std::vector<double> swapped(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t n = i / 75, pixel = i / 3 % 25, c = i % 3;
    swapped[(n * 3 + c) * 25 + pixel] = x[i];
  }
  Padded a(dtype(), 27, 27), b(dtype(), 27, 27);
  ops::patch_gram(ctx, nhwc, 1, image(nhwc, x), 0, a.view());
  ops::patch_gram(ctx, nchw, 1, image(nchw, swapped), 0, b.view());
  EXPECT_NE(testing::lower(a.values()).data, testing::lower(b.values()).data);
  // ... and the permutation between the orders makes them equal.
  const Dense l = testing::lower(b.values());
  const auto place = [](std::int64_t column) { return column % 3 * 9 + column / 3; };
  const Dense permuted = testing::make_dense(27, 27, [&](auto i, auto j) {
    return j > i ? 0.0 : l(std::max(place(i), place(j)), std::min(place(i), place(j)));
  });
  EXPECT_EQ(testing::lower(a.values()).data, permuted.data);
}

TEST_P(Patches, GramWithBetaZeroDoesNotReadTheResult) {
  Random random(5);
  const PatchSpec s{1, 4, 4, 2, {3, 3, 1, 1, 1, 1}, Layout::nhwc};
  const std::vector<double> x = integers(s, random);
  Padded c(dtype(), 19, 19, Padded::kNan);
  ops::patch_gram(ctx, s, 1, image(s, x), 0, c.view());
  const Dense p = testing::with_ones(testing::naive_im2col(s, x));
  EXPECT_EQ(testing::lower(c.values()).data,
            testing::lower(testing::multiply(testing::transpose(p), p)).data);
  EXPECT_TRUE(c.upper_untouched());
}

TEST_P(Patches, GramOfNoSamplesOnlyScales) {
  const PatchSpec s{0, 4, 4, 2, {3, 3, 1, 1, 1, 1}, Layout::nhwc};
  const Dense ones = testing::make_dense(19, 19, [](auto, auto) { return 1.0; });
  Padded c = Padded::lower(dtype(), ones);
  ops::patch_gram(ctx, s, 1, Tensor::empty(ctx, shape(s), dtype()), 0.5, c.view());
  EXPECT_EQ(c.get(18, 18), 0.5);
  EXPECT_EQ(c.get(3, 1), 0.5);
  EXPECT_TRUE(c.upper_untouched());
  Padded none(dtype(), 0, 18);
  ops::im2col(ctx, s, Tensor::empty(ctx, shape(s), dtype()), none.view());
}

TEST_P(Patches, GramOfPlainRowsMatchesTheNaiveProduct) {
  Random random(6);
  for (const std::int64_t width : {0, 1, 2, 31, 65, 100}) {
    for (const std::int64_t n : {0, 1, 33, 257}) {
      for (const bool bias : {false, true}) {
        const Dense x = testing::random_integers(n, width, random);
        const Dense rows = bias ? testing::with_ones(x) : x;
        const Dense c0 = testing::random_integers(rows.cols, rows.cols, random);
        Padded px(dtype(), x), c = Padded::lower(dtype(), c0);
        ops::gram(ctx, 2, px.view(), -1, c.view());
        const Dense expected = testing::naive_gemm(2, testing::transpose(rows), rows, -1, c0);
        ASSERT_EQ(testing::lower(c.values()).data, testing::lower(expected).data)
            << n << "x" << width << " bias " << bias;
        ASSERT_TRUE(c.upper_untouched());
      }
    }
  }
}

TEST_P(Patches, GramIsExactOnIntegersForAnyNumberOfThreads) {
  Random random(7);
  const PatchSpec s{5, 23, 20, 4, {3, 3, 1, 2, 1, 1}, Layout::nhwc};  // 1150 rows
  const std::vector<double> x = integers(s, random);
  const Dense plain = testing::random_integers(1700, 9, random);
  const Dense p = testing::with_ones(testing::naive_im2col(s, x));
  const Dense q = testing::with_ones(plain);
  const Dense c0 = testing::random_integers(37, 37, random);
  const int before = threads();
  for (const int count : {1, 2, 3, 5}) {
    set_threads(count);
    Padded c = Padded::lower(dtype(), c0), d(dtype(), 10, 10), px(dtype(), plain);
    ops::patch_gram(ctx, s, 0.5, image(s, x), 2, c.view());
    EXPECT_EQ(testing::lower(c.values()).data,
              testing::lower(testing::naive_gemm(0.5, testing::transpose(p), p, 2, c0)).data)
        << count;
    EXPECT_TRUE(c.upper_untouched());
    ops::gram(ctx, 1, px.view(), 0, d.view());
    EXPECT_EQ(testing::lower(d.values()).data,
              testing::lower(testing::multiply(testing::transpose(q), q)).data)
        << count;
    EXPECT_TRUE(d.upper_untouched());
  }
  set_threads(before);
}

TEST_P(Patches, GramGrowsScratchOnlyOnce) {
  const PatchSpec s{4, 16, 16, 8, {3, 3, 1, 1, 1, 1}, Layout::nhwc};
  Tensor x = Tensor::zeros(ctx, shape(s), dtype()), c = Tensor::zeros(ctx, {73, 73}, dtype());
  ops::patch_gram(ctx, s, 1, x, 0, c);
  ops::patch_gram(ctx, s, 1, x, 0, c);  // may merge the blocks of the first call into one
  const std::int64_t before = ctx.scratch_growths();
  ops::patch_gram(ctx, s, 1, x, 0, c);
  EXPECT_EQ(ctx.scratch_growths(), before);
}

TEST_P(Patches, RefuseWhatDoesNotFit) {
  const PatchSpec s{1, 4, 4, 2, {3, 3, 1, 1, 0, 0}, Layout::nhwc};
  Tensor x = Tensor::zeros(ctx, {1, 4, 4, 2}, dtype());
  Padded wrong(dtype(), 20, 20), right(dtype(), 18, 18), patches(dtype(), 4, 18);
  EXPECT_THROW(ops::patch_gram(ctx, s, 1, x, 0, wrong.view()), InvalidArgument);
  EXPECT_THROW(ops::im2col(ctx, s, x, right.view()), InvalidArgument);
  EXPECT_NO_THROW(ops::im2col(ctx, s, x, patches.view()));
  PatchSpec large = s;
  large.window.kernel_h = 5;
  Padded big(dtype(), 30, 30);
  EXPECT_THROW(ops::patch_gram(ctx, large, 1, x, 0, big.view()), InvalidArgument);
  for (const auto& spoil : std::vector<void (*)(PatchSpec&)>{
           [](PatchSpec& p) { p.window.stride_w = 0; }, [](PatchSpec& p) { p.window.pad_h = -1; },
           [](PatchSpec& p) { p.window.kernel_w = 0; }, [](PatchSpec& p) { p.n = -1; },
           [](PatchSpec& p) { p.window.extra_h = -1; },
           [](PatchSpec& p) { p.window.dilation_w = 0; },
           [](PatchSpec& p) { p.window.dilation_h = 2; },  // now spans 5 of 4 rows
           [](PatchSpec& p) { p.layout = Layout::nchw; }}) {
    PatchSpec spoiled = s;
    spoil(spoiled);
    EXPECT_THROW(ops::patch_gram(ctx, spoiled, 1, x, 0, right.view()), InvalidArgument);
  }
  Padded rows(dtype(), 5, 3);
  EXPECT_THROW(ops::gram(ctx, 1, rows.view(), 0, right.view()), InvalidArgument);
}

}  // namespace
}  // namespace dkfac
