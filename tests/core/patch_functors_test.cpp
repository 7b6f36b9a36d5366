// The kernels of convolution patches and small matrix operations, element by element on the host.
#include "core/cuda/patch_functors.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/cuda/gram_functors.h"
#include "core/cuda/matrix_functors.h"
#include "core/cuda/triangle_functors.h"
#include "support/not_finite.h"
#include "support/reference.h"

namespace dkfac {
namespace {

using ops::Layout;
using ops::PatchSpec;
using testing::Dense;

/// Strides, paddings, holes, kernels wider than high and images smaller than the kernel.
std::vector<PatchSpec> functor_specs(Layout layout, std::int64_t c) {
  return {{2, 5, 6, c, {3, 3, 1, 1, 1, 1}, layout},
          {3, 7, 4, c, {3, 2, 2, 1, 1, 0}, layout},
          {1, 6, 9, c, {1, 5, 1, 3, 0, 2}, layout},
          {2, 5, 5, c, {1, 1, 2, 2, 0, 0}, layout},
          {2, 2, 3, c, {7, 5, 2, 2, 3, 3}, layout},
          {2, 5, 6, c, {2, 4, 1, 1, 0, 1, 1, 1}, layout},
          {2, 8, 9, c, {3, 3, 1, 1, 2, 2, 0, 0, 2, 2}, layout},
          {1, 9, 7, c, {3, 2, 2, 1, 1, 0, 0, 2, 1, 3}, layout}};
}

std::vector<double> numbers(std::int64_t count) {
  std::vector<double> out;
  for (std::int64_t i = 0; i < count; ++i) out.push_back(static_cast<double>(i + 1));
  return out;
}

/// Images with the channels of a spec alone, of images with all channels.
std::vector<double> channels_of(const PatchSpec& s, const std::vector<double>& x) {
  std::vector<double> out;
  const std::int64_t area = s.layout == Layout::nhwc ? 1 : s.h * s.w;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::int64_t c = static_cast<std::int64_t>(i) / area % s.x_channels();
    if (c >= s.first_c && c < s.first_c + s.c) out.push_back(x[i]);
  }
  return out;
}

/// Results of the kernel for images whose elements are kNan where they must not be read.
std::vector<double> fill(const PatchSpec& s, std::int64_t groups, const std::vector<double>& x,
                         std::int64_t first, std::int64_t rows) {
  const std::int64_t width = s.width(), row = width + 3;
  std::vector<double> out(static_cast<std::size_t>(rows * row), kNan);
  const cuda::FillPatches<double> kernel{
      x.data() + cuda::first_element(s), out.data(), first, width, row, cuda::Windows(s, groups)};
  for (std::int64_t i = 0; i < rows * width; ++i) kernel(i);
  std::vector<double> values;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < row; ++c) {
      const double value = out[static_cast<std::size_t>(r * row + c)];
      if (c < width) {
        values.push_back(value);
      } else {
        EXPECT_TRUE(std::isnan(value)) << "gap";
      }
    }
  }
  return values;
}

TEST(PatchKernels, FollowTheDefinitionOfConvolution) {
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
    for (const PatchSpec& s : functor_specs(layout, 3)) {
      const auto x = numbers(s.n * s.h * s.w * s.c);
      EXPECT_EQ(fill(s, 1, x, 0, s.rows()), testing::naive_im2col(s, x).data);
      if (s.rows() < 3) continue;
      const Dense all = testing::naive_im2col(s, x);  // and a panel from the middle
      const std::vector<double> middle(all.data.begin() + all.cols, all.data.end() - all.cols);
      EXPECT_EQ(fill(s, 1, x, 1, s.rows() - 2), middle);
    }
  }
}

TEST(PatchKernels, ReadTheirRangeOfChannelsAlone) {
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
    for (PatchSpec s : functor_specs(layout, 2)) {
      s.x_c = 5;
      s.first_c = 2;
      auto x = numbers(s.n * s.h * s.w * s.x_c);
      PatchSpec alone = s;
      alone.x_c = alone.first_c = 0;
      const Dense expected = testing::naive_im2col(alone, channels_of(s, x));
      const std::int64_t area = layout == Layout::nhwc ? 1 : s.h * s.w;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const std::int64_t c = static_cast<std::int64_t>(i) / area % s.x_c;
        if (c < 2 || c >= 4) x[i] = kNan;
      }
      EXPECT_EQ(fill(s, 1, x, 0, s.rows()), expected.data);
    }
  }
}

TEST(PatchKernels, OrderColumnsByGroupFirst) {
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
    for (const PatchSpec& s : functor_specs(layout, 6)) {
      const auto x = numbers(s.n * s.h * s.w * s.c);
      const auto all = fill(s, 3, x, 0, s.rows());
      PatchSpec one = s;
      one.x_c = s.c;
      one.c = 2;
      for (std::int64_t group = 0; group < 3; ++group) {
        one.first_c = 2 * group;
        const auto alone = fill(one, 1, x, 0, s.rows());
        for (std::int64_t i = 0; i < s.rows() * one.width(); ++i) {
          const std::int64_t r = i / one.width(), c = i % one.width();
          ASSERT_EQ(all[static_cast<std::size_t>(r * s.width() + group * one.width() + c)],
                    alone[static_cast<std::size_t>(i)]);
        }
      }
    }
  }
}

template <std::size_t kBytes>
void expect_same_in_words(PatchSpec s, std::int64_t groups) {
  using Word = cuda::Word<kBytes>;
  constexpr std::int64_t kIn = kBytes / 2;
  std::vector<std::uint16_t> x(static_cast<std::size_t>(s.n * s.h * s.w * s.x_channels()));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<std::uint16_t>(i + 1);
  const std::int64_t count = s.rows() * s.width();
  std::vector<std::uint16_t> single(static_cast<std::size_t>(count), 0xFFFF), words(single);
  const cuda::FillPatches<std::uint16_t> one{
      x.data() + cuda::first_element(s), single.data(), 0, s.width(), s.width(),
      cuda::Windows(s, groups)};
  for (std::int64_t i = 0; i < count; ++i) one(i);
  std::vector<Word> from(x.size() / kIn), to(words.size() / kIn);
  std::memcpy(from.data(), x.data(), x.size() * 2);
  const PatchSpec t = cuda::in_words(s, kIn);
  const cuda::FillPatches<Word> wide{from.data() + cuda::first_element(t),
                                     to.data(),
                                     0,
                                     t.width(),
                                     t.width(),
                                     cuda::Windows(t, groups)};
  for (std::int64_t i = 0; i < count / kIn; ++i) wide(i);
  std::memcpy(words.data(), to.data(), words.size() * 2);
  EXPECT_EQ(words, single) << kBytes;
}

TEST(PatchKernels, MoveWordsOfChannelsAsTheyMoveChannels) {
  for (PatchSpec s : functor_specs(Layout::nhwc, 16)) {
    s.x_c = 32;
    s.first_c = 8;
    for (const std::int64_t groups : {1, 2}) {
      expect_same_in_words<16>(s, groups);
      expect_same_in_words<8>(s, groups);
      expect_same_in_words<4>(s, groups);
    }
  }
}

TEST(PatchKernels, TermsAddUpToTheColumnsOfPatches) {
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
    for (const PatchSpec& s : functor_specs(layout, 3)) {
      const auto x = numbers(s.n * s.h * s.w * s.c);
      const Dense p = testing::naive_im2col(s, x);
      const std::int64_t count = s.out_h() * s.out_w(), row = s.width() + 2;
      std::vector<double> sums(static_cast<std::size_t>(s.n * row), kNan);
      const cuda::PatchTerm<double, double> term{x.data(), s.width(), cuda::Windows(s)};
      const cuda::StorePatchSum<double> store{sums.data(), s.width(), row, 0.5};
      for (std::int64_t i = 0; i < s.n * s.width(); ++i) {
        double sum = 0;
        for (std::int64_t k = 0; k < count; ++k) sum += term(i, k);
        store(i, sum);
      }
      for (std::int64_t n = 0; n < s.n; ++n) {
        for (std::int64_t c = 0; c < row; ++c) {
          double expected = 0;
          for (std::int64_t k = 0; c < p.cols && k < count; ++k)
            expected += 0.5 * p(n * count + k, c);
          const double found = sums[static_cast<std::size_t>(n * row + c)];
          EXPECT_TRUE(c < p.cols ? found == expected : std::isnan(found)) << found;
        }
      }
    }
  }
}

TEST(PatchKernels, WidenSixteenBitTerms) {
  const std::vector<f16> x{to_f16(1.5F), to_f16(-2.0F)};
  const PatchSpec s{1, 1, 2, 1, {1, 1, 1, 1, 0, 0}, Layout::nhwc};
  const cuda::PatchTerm<f16, float> term{x.data(), 1, cuda::Windows(s)};
  EXPECT_EQ(term(0, 0), 1.5F);
  EXPECT_EQ(term(0, 1), -2.0F);
}

TEST(MatrixKernels, MirrorScaleAndShiftWithoutReadingWhatTheyReplace) {
  constexpr std::int64_t kD = 3, kRow = 5;
  std::vector<double> a(kD * kRow, kNan);
  const auto at = [&](std::int64_t r, std::int64_t c) -> double& {
    return a[static_cast<std::size_t>(r * kRow + c)];
  };
  for (std::int64_t r = 0; r < kD; ++r)
    for (std::int64_t c = 0; c <= r; ++c) at(r, c) = static_cast<double>(10 * r + c);
  const cuda::LoadStrictLower<double> load{a.data(), kRow};
  const cuda::StoreStrictlyUpper<double> store{a.data(), kRow};
  EXPECT_EQ(load(0, 1), 0);  // and not the NaN there
  for (std::int64_t r = 0; r < kD; ++r)
    for (std::int64_t c = 0; c < kD; ++c) store(r, c, load(r, c));
  EXPECT_EQ(at(0, 2), 20);
  EXPECT_EQ(at(1, 2), 21);
  EXPECT_EQ(at(1, 1), 11);
  const cuda::AddToDiagonal<double> add{a.data(), kRow, 0.5};
  for (std::int64_t i = 0; i < kD; ++i) add(i);
  EXPECT_EQ(at(2, 2), 22.5);
  const cuda::ScaleElement<double> half{a.data(), kRow, 0.5, true};
  half(2, 1);
  half(0, 1);
  EXPECT_EQ(at(2, 1), 10.5);
  EXPECT_EQ(at(0, 1), 10);  // above the diagonal
  at(1, 0) = kNan;
  cuda::ScaleElement<double>{a.data(), kRow, 0, true}(1, 0);
  EXPECT_EQ(at(1, 0), 0);
  EXPECT_TRUE(std::isnan(at(0, 3)));
}

TEST(GramKernels, SumPartsIntoAllOfAMatrixOrItsLowerTriangle) {
  const std::vector<double> parts{1, 2, 3, 4, 10, 20, 30, 40};
  for (const bool lower : {false, true}) {
    std::vector<double> c(6, kNan);
    for (const double beta : {0.0, 2.0}) {
      const cuda::SumPartsInto<double> kernel{parts.data(), 2, 2, 2, c.data(), 3, 0.5, beta, lower};
      for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j) kernel(i, j);
    }
    EXPECT_EQ(c[0], 3 * 5.5);
    EXPECT_TRUE(lower ? std::isnan(c[1]) : c[1] == 33);
    EXPECT_TRUE(std::isnan(c[2]));
    EXPECT_EQ(c[3], 3 * 16.5);
    EXPECT_EQ(c[4], 3 * 22.0);
  }
}

TEST(GramKernels, StoreGroupsWithAndWithoutBias) {
  const std::vector<double> products{1, 2, 3, 4, 5, 6, 7, 8}, sums{9, 10, 11, 12};
  for (const std::int64_t d : {2, 3}) {
    std::vector<double> c(static_cast<std::size_t>(2 * d * d), kNan);
    const cuda::StoreGroups<double> kernel{products.data(), sums.data(), 2,   d,   c.data(),
                                           d * d,           d,           0.5, 0.0, 7.0};
    for (std::int64_t i = 0; i < 2 * d; ++i)
      for (std::int64_t j = 0; j < d; ++j) kernel(i, j);
    const auto at = [&](std::int64_t g, std::int64_t i, std::int64_t j) {
      return c[static_cast<std::size_t>((g * d + i) * d + j)];
    };
    EXPECT_EQ(at(1, 1, 0), 3.5);
    EXPECT_TRUE(std::isnan(at(1, 0, 1)));
    if (d == 3) {
      EXPECT_EQ(at(0, 2, 1), 5);
      EXPECT_EQ(at(1, 2, 0), 5.5);
      EXPECT_EQ(at(1, 2, 2), 7);
    }
  }
}

TEST(GramKernels, GroupsOfRowsCoverAllRowsAndAreNeitherTooLongNorTooShort) {
  for (const std::int64_t n : {1, 64, 129, 512, 1023}) {
    for (const std::int64_t rows : {1, 511, 1024, 12544, 802816, 10000001}) {
      const cuda::RowGroups g = cuda::row_groups(rows, n, n);
      EXPECT_EQ(g.rounds * g.groups * g.per + g.rest, rows);
      EXPECT_GE(g.per, std::min<std::int64_t>(rows, 256));
      EXPECT_LE(g.per, cuda::kRunningSum);
      EXPECT_LT(g.rest, g.rounds * g.groups);
      EXPECT_LE(g.groups * n * n, std::int64_t{2} << 20);  // elements of the partial sums
    }
  }
  EXPECT_EQ(cuda::row_groups(802816, 64, 64).groups, 128);
}

}  // namespace
}  // namespace dkfac
