// Ranges of channels, groups of them, and sums of patches.
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
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

/// Six channels under many geometries, of which offset sums take the last.
std::vector<PatchSpec> grouped_specs() {
  std::vector<PatchSpec> out;
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
    out.push_back({2, 5, 6, 6, {3, 3, 1, 1, 1, 1}, layout});
    out.push_back({3, 7, 4, 6, {3, 2, 2, 1, 1, 0}, layout});
    out.push_back({2, 4, 4, 6, {1, 1, 1, 1, 0, 0}, layout});
    out.push_back({2, 5, 5, 6, {1, 1, 2, 2, 0, 0}, layout});
    out.push_back({3, 3, 2, 6, {3, 2, 1, 1, 0, 0}, layout});  // one patch per image
    out.push_back({2, 2, 3, 6, {7, 5, 2, 2, 3, 3}, layout});
    out.push_back({2, 8, 9, 6, {3, 3, 1, 2, 2, 2, 1, 0, 2, 2}, layout});
    out.push_back({2, 16, 16, 24, {3, 3, 1, 1, 1, 1}, layout});
  }
  return out;
}

Shape shape(const PatchSpec& s) {
  return s.layout == Layout::nhwc ? Shape{s.n, s.h, s.w, s.x_channels()}
                                  : Shape{s.n, s.x_channels(), s.h, s.w};
}

/// The values of channels [first, first + count) alone, in the same layout.
std::vector<double> channels(const PatchSpec& s, const std::vector<double>& x, std::int64_t first,
                             std::int64_t count) {
  std::vector<double> out;
  const std::int64_t area = s.layout == Layout::nhwc ? 1 : s.h * s.w;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::int64_t c = static_cast<std::int64_t>(i) / area % s.c;
    if (c >= first && c < first + count) out.push_back(x[i]);
  }
  return out;
}

class PatchGroups : public testing::EachBackend {
 protected:
  Tensor image(const PatchSpec& s, const std::vector<double>& values) {
    Tensor x = Tensor::empty(ctx, shape(s), dtype());
    ops::cast(ctx, view_of(values.data(), shape(s)), x);
    return x;
  }
  static std::vector<double> integers(const PatchSpec& s, Random& random) {
    return testing::random_integers(1, s.n * s.h * s.w * s.c, random).data;
  }
};
DKFAC_EACH_BACKEND(PatchGroups);

TEST_P(PatchGroups, ARangeOfChannelsIsTheConvolutionOfThoseAlone) {
  Random random(1);
  for (const PatchSpec& whole : grouped_specs()) {
    const std::vector<double> x = integers(whole, random);
    const Tensor view = image(whole, x);
    PatchSpec part = whole, alone = whole;
    part.x_c = whole.c;
    part.c = alone.c = whole.c / 2;
    part.first_c = whole.c / 3;
    const Dense rows = testing::naive_im2col(alone, channels(whole, x, part.first_c, part.c));
    Padded patches(dtype(), rows.rows, rows.cols);
    ops::im2col(ctx, part, view, patches.view());
    EXPECT_EQ(patches.values().data, rows.data);
    const Dense with_bias = testing::with_ones(rows);
    Padded c(dtype(), with_bias.cols, with_bias.cols);
    ops::patch_gram(ctx, part, 1, view, 0, c.view());
    const Dense expected = testing::multiply(testing::transpose(with_bias), with_bias);
    EXPECT_EQ(testing::lower(c.values()).data, testing::lower(expected).data);
    part.first_c = 0;  // control: other channels are others
    ops::patch_gram(ctx, part, 1, view, 0, c.view());
    EXPECT_NE(testing::lower(c.values()).data, testing::lower(expected).data);
  }
}

TEST_P(PatchGroups, GramOfGroupsIsTheGramOfEach) {
  Random random(2);
  for (const PatchSpec& s : grouped_specs()) {
    const std::vector<double> x = integers(s, random);
    for (const std::int64_t groups : {std::int64_t{2}, s.c}) {
      for (const bool bias : {false, true}) {
        PatchSpec one = s;
        one.c = s.c / groups;
        const std::int64_t d = one.width() + (bias ? 1 : 0);
        Tensor c = Tensor::empty(ctx, {groups, d, d}, dtype());
        ops::fill(ctx, c, 2);
        ops::patch_gram(ctx, s, 0.5, image(s, x), -2, c);
        for (std::int64_t g = 0; g < groups; ++g) {
          const Dense p = testing::naive_im2col(one, channels(s, x, g * one.c, one.c));
          const Dense rows = bias ? testing::with_ones(p) : p;
          const Dense twos = testing::make_dense(d, d, [](auto, auto) { return 2.0; });
          const Dense sum = testing::naive_gemm(0.5, testing::transpose(rows), rows, -2, twos);
          Dense found(d, d);
          found.data = testing::values(ctx, c.view().slice(0, g, 1));
          ASSERT_EQ(testing::lower(found).data, testing::lower(sum).data) << g << " of " << groups;
          for (std::int64_t i = 0; i + 1 < d; ++i)
            ASSERT_EQ(found(i, d - 1), 2) << "upper triangle";
        }
      }
    }
  }
}

TEST_P(PatchGroups, SumsOfPatchesAreTheSumsOfTheirRows) {
  Random random(3);
  for (PatchSpec s : grouped_specs()) {
    const std::vector<double> x = integers(s, random);
    const Tensor view = image(s, x);
    const std::int64_t all = s.c;
    for (const std::int64_t count : {all, all / 2}) {
      s.x_c = all;
      s.c = count;
      s.first_c = all - count;
      PatchSpec alone = s, whole = s;
      alone.x_c = alone.first_c = 0;
      whole.c = all;
      const Dense rows = testing::naive_im2col(alone, channels(whole, x, s.first_c, count));
      Dense expected(s.n, s.width());
      for (std::int64_t r = 0; r < rows.rows; ++r) {
        for (std::int64_t c = 0; c < rows.cols; ++c) {
          expected(r / (rows.rows / s.n), c) += 0.5 * rows(r, c);
        }
      }
      Padded sums(dtype(), s.n, s.width());
      ops::patch_sum(ctx, s, 0.5, view, sums.view());
      EXPECT_EQ(sums.values().data, expected.data);
      EXPECT_TRUE(sums.gaps_untouched());
    }
  }
}

TEST_P(PatchGroups, SumsAreTheSameForAnyNumberOfThreads) {
  Random random(4);
  const PatchSpec s{7, 32, 30, 20, {3, 3, 1, 1, 1, 1}, Layout::nhwc};
  const Tensor x = image(s, testing::random_dense(1, s.n * s.h * s.w * s.c, random).data);
  const int before = threads();
  std::vector<std::vector<double>> results;
  for (const int count : {1, 2, 5}) {
    set_threads(count);
    Padded sums(dtype(), s.n, s.width());
    ops::patch_sum(ctx, s, 1, x, sums.view());
    results.push_back(sums.values().data);
  }
  set_threads(before);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST_P(PatchGroups, RefuseWhatDoesNotFit) {
  const PatchSpec s{1, 4, 4, 6, {1, 1, 1, 1, 0, 0}, Layout::nhwc};
  const Tensor x = Tensor::zeros(ctx, {1, 4, 4, 6}, dtype());
  Tensor four = Tensor::zeros(ctx, {4, 1, 1}, dtype()),
         three = Tensor::zeros(ctx, {3, 2, 2}, dtype());
  Padded sums(dtype(), 1, 6), rows(dtype(), 16, 6);
  EXPECT_NO_THROW(ops::patch_gram(ctx, s, 1, x, 0, three));
  EXPECT_NO_THROW(ops::patch_sum(ctx, s, 1, x, sums.view()));
  EXPECT_THROW(ops::patch_gram(ctx, s, 1, x, 0, four), InvalidArgument);
  EXPECT_THROW(ops::patch_sum(ctx, s, 1, x, rows.view()), InvalidArgument);
  PatchSpec range = s;
  range.first_c = 1;
  range.x_c = 6;
  EXPECT_THROW(ops::im2col(ctx, range, x, rows.view()), InvalidArgument);  // channels 1 to 7 of 6
}

}  // namespace
}  // namespace dkfac
