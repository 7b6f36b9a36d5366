// The factor of 3x3 kernels from products at 13 offsets: the kernels around the products on the
// host, with loops for the products.
#include "core/cuda/offset_functors.h"

#include <cmath>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "support/near.h"
#include "support/not_finite.h"
#include "support/reference.h"

namespace dkfac {
namespace {

using cuda::OffsetProducts;
using cuda::OffsetVectors;
using ops::Layout;
using ops::PatchSpec;
using testing::Dense;
using Numbers = std::vector<double>;

Numbers poisoned(std::int64_t count) { return Numbers(static_cast<std::size_t>(count), kNan); }

/// The method over `groups` groups of `per` images in each round, as offset_gram() runs it.
class Method {
 public:
  Method(const PatchSpec& s, std::int64_t groups, std::int64_t per)
      : s_(s),
        groups_(groups),
        per_(per),
        image_(poisoned(cuda::PadImages<double>::pixels(images(), s.h, s.w) * s.c)),
        rows_(poisoned(cuda::CopyLines<double>::pixels(images(), s.w) * s.c)),
        columns_(poisoned(cuda::CopyLines<double>::pixels(images(), s.h) * s.c)),
        corners_(poisoned(4 * images() * s.c)),
        parts_(static_cast<std::size_t>(OffsetProducts::kCount * groups * s.c * s.c), 0.0),
        vectors_(static_cast<std::size_t>(OffsetVectors::kCount * s.c), 0.0) {}

  void run(const Numbers& x) {
    for (std::int64_t first = 0; first < s_.n; first += images()) {
      copy(x.data() + cuda::first_element(s_), first);
      multiply_all();
      sum_all();
    }
    products_ = poisoned(OffsetProducts::kCount * s_.c * s_.c);
    const cuda::SumParts<double> sum{parts_.data(), groups_, s_.c * s_.c, products_.data()};
    for (std::int64_t i = 0; i < OffsetProducts::kCount * s_.c * s_.c; ++i) sum(i);
  }

  [[nodiscard]] Dense assemble(double alpha, double beta, Dense c) const {
    const cuda::AssembleOffsets<double> kernel{
        products_.data(), vectors_.data(), s_.c,  s_.layout == Layout::nhwc,
        c.data.data(),    c.cols,          alpha, beta};
    for (std::int64_t i = 0; i < c.rows; ++i)
      for (std::int64_t j = 0; j < c.cols; ++j) kernel(i, j);
    return c;
  }

  Numbers& products() { return products_; }

 private:
  [[nodiscard]] std::int64_t images() const { return groups_ * per_; }

  void copy(const double* x, std::int64_t first) {
    const cuda::ImageStrides at = cuda::strides_of(s_);
    const auto all = [](const auto& kernel, const Numbers& to) {
      for (std::size_t i = 0; i < to.size(); ++i) kernel(static_cast<std::int64_t>(i));
    };
    const std::int64_t n = s_.n, h = s_.h, w = s_.w, c = s_.c;
    all(cuda::PadImages<double>{x, image_.data(), first, n, h, w, images(), c, at}, image_);
    all(cuda::CopyLines<double>{x, rows_.data(), first, n, w, h, images(), c, at.image, at.col,
                                at.row, at.channel},
        rows_);
    all(cuda::CopyLines<double>{x, columns_.data(), first, n, h, w, images(), c, at.image, at.row,
                                at.col, at.channel},
        columns_);
    all(cuda::CopyCorners<double>{x, corners_.data(), first, n, h, w, images(), c, at}, corners_);
  }

  void multiply(const Numbers& pixels, std::int64_t lines, std::int64_t count, std::int64_t shift,
                int which) {
    for (std::int64_t b = 0; b < lines * groups_; ++b) {
      for (std::int64_t k = b * count; k < (b + 1) * count; ++k) {
        for (std::int64_t i = 0; i < s_.c; ++i) {
          for (std::int64_t j = 0; j < s_.c; ++j) {
            parts_[static_cast<std::size_t>(((which * groups_ + b) * s_.c + i) * s_.c + j)] +=
                pixels.at(static_cast<std::size_t>((k + shift) * s_.c + i)) *
                pixels.at(static_cast<std::size_t>(k * s_.c + j));
          }
        }
      }
    }
  }

  void multiply_all() {
    const std::int64_t row = s_.w + 2;
    for (int y = 0; y <= 2; ++y)
      for (int dx = y == 0 ? 0 : -2; dx <= 2; ++dx)
        multiply(image_, 1, per_ * (s_.h + 2) * row, y * row + dx, OffsetProducts::image(y, dx));
    for (int pixels = 0; pixels <= 2; ++pixels) {
      multiply(rows_, 2, per_ * row, pixels, OffsetProducts::row(pixels, 0));
      multiply(columns_, 2, per_ * (s_.h + 2), pixels, OffsetProducts::column(pixels, 0));
    }
    multiply(corners_, 4, per_, 0, OffsetProducts::corner(0));
  }

  void sum(const Numbers& pixels, std::int64_t lines, std::int64_t count, int which) {
    const cuda::LineTerm<double, double> term{pixels.data(), count, s_.c};
    for (std::int64_t i = 0; i < lines * s_.c; ++i)
      for (std::int64_t k = 0; k < count; ++k)
        vectors_[static_cast<std::size_t>(which * s_.c + i)] += term(i, k);
  }

  void sum_all() {
    sum(image_, 1, images() * (s_.h + 2) * (s_.w + 2), OffsetVectors::kImage);
    sum(rows_, 2, images() * (s_.w + 2), OffsetVectors::kRows);
    sum(columns_, 2, images() * (s_.h + 2), OffsetVectors::kColumns);
    sum(corners_, 4, images(), OffsetVectors::kCorners);
  }

  PatchSpec s_;
  std::int64_t groups_, per_;
  Numbers image_, rows_, columns_, corners_, parts_, vectors_, products_;
};

Dense factor(const Dense& p) { return testing::lower(testing::multiply(testing::transpose(p), p)); }

TEST(OffsetKernels, AreExactOnIntegersForImagesOfAnySizeGroupsAndRounds) {
  Random random(1);
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
    for (const auto& [h, w] : {std::pair{1, 1}, {1, 4}, {2, 2}, {3, 1}, {2, 5}, {6, 4}}) {
      for (const auto& [n, groups, per] : {std::tuple{1, 1, 1}, {3, 1, 3}, {5, 3, 2}, {7, 2, 2}}) {
        const PatchSpec s{n, h, w, 3, {3, 3, 1, 1, 1, 1}, layout};
        const auto x = testing::random_integers(1, n * h * w * 3, random).data;
        Method method(s, groups, per);
        method.run(x);
        const Dense p = testing::with_ones(testing::naive_im2col(s, x));
        Dense c0(28, 28);
        c0.data.assign(c0.data.size(), kNan);
        Dense found = method.assemble(1, 0, c0);
        EXPECT_TRUE(std::isnan(found(27, 27))) << "the corner is not ours";
        for (std::int64_t i = 0; i < 28; ++i)
          for (std::int64_t j = i + 1; j < 28; ++j) ASSERT_TRUE(std::isnan(found(i, j)));
        found(27, 27) = static_cast<double>(p.rows);
        EXPECT_EQ(testing::lower(found).data, factor(p).data)
            << n << "x" << h << "x" << w << " in " << groups << " groups of " << per;
      }
    }
  }
}

TEST(OffsetKernels, BlendWithWhatWasThere) {
  Random random(2);
  const PatchSpec s{2, 4, 3, 2, {3, 3, 1, 1, 1, 1}, Layout::nhwc};
  const auto x = testing::random_integers(1, 48, random).data;
  Method method(s, 2, 1);
  method.run(x);
  const Dense p = testing::naive_im2col(s, x);
  const Dense c0 = testing::random_integers(18, 18, random);
  const Dense expected = testing::naive_gemm(0.5, testing::transpose(p), p, -2, c0);
  EXPECT_EQ(testing::lower(method.assemble(0.5, -2, c0)).data, testing::lower(expected).data);
}

TEST(OffsetKernels, ReadTheirRangeOfChannelsAlone) {
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
    PatchSpec s{2, 3, 4, 2, {3, 3, 1, 1, 1, 1}, layout};
    s.x_c = 5;
    s.first_c = 2;
    Numbers x(2 * 3 * 4 * 5), alone;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t c = layout == Layout::nhwc ? i % 5 : i / 12 % 5;
      x[i] = c == 2 || c == 3 ? static_cast<double>(i % 7) : kNan;
      if (c == 2 || c == 3) alone.push_back(x[i]);
    }
    Method method(s, 1, 2);
    method.run(x);
    PatchSpec t = s;
    t.x_c = t.first_c = 0;
    EXPECT_EQ(testing::lower(method.assemble(1, 0, Dense(18, 18))).data,
              factor(testing::naive_im2col(t, alone)).data);
  }
}

TEST(OffsetKernels, NeedEveryOneOfTheirProducts) {
  // Negative control: one product off by one is seen, whichever it is.
  Random random(3);
  const PatchSpec s{2, 4, 5, 1, {3, 3, 1, 1, 1, 1}, Layout::nhwc};
  const auto x = testing::random_integers(1, 40, random).data;
  Method method(s, 1, 2);
  method.run(x);
  const Dense expected = factor(testing::naive_im2col(s, x));
  ASSERT_EQ(testing::lower(method.assemble(1, 0, Dense(9, 9))).data, expected.data);
  for (double& product : method.products()) {
    product += 1;
    EXPECT_NE(testing::lower(method.assemble(1, 0, Dense(9, 9))).data, expected.data);
    product -= 1;
  }
}

TEST(OffsetKernels, RoundsAndGroupsCoverTheBatchWithinTheirBounds) {
  for (const std::int64_t n : {1, 2, 31, 256, 1000}) {
    for (const auto& [h, c] : {std::pair{1, 3}, {7, 512}, {56, 64}, {14, 2000}, {400, 64}}) {
      const PatchSpec s{n, h, h, c, {3, 3, 1, 1, 1, 1}, Layout::nhwc};
      const cuda::OffsetRounds plan = cuda::offset_rounds(s, 2);
      const std::int64_t pixels = (s.h + 2) * (s.w + 2);
      EXPECT_GE(plan.rounds * plan.images(), n);
      EXPECT_LT((plan.rounds - 1) * plan.images(), n) << "no empty round";
      EXPECT_LE(plan.images(), n + plan.per) << "few empty images";
      EXPECT_TRUE(plan.per == 1 || plan.per * pixels <= cuda::kRunningSum);
      EXPECT_TRUE(plan.images() <= 2 * plan.per ||
                  (plan.images() - plan.per) * pixels * c * 2 <= std::int64_t{256} << 20);
    }
  }
  EXPECT_EQ(cuda::offset_rounds({256, 56, 56, 64, {3, 3, 1, 1, 1, 1}}, 2).rounds, 1);
}

}  // namespace
}  // namespace dkfac
