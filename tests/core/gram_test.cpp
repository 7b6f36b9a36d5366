// Sums over very many rows: in f32 a running sum of equal terms drifts, and these must not.
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/ops.h"
#include "dkfac/core/tensor.h"
#include "dkfac/core/threads.h"

#include "support/each_backend.h"
#include "support/near.h"

namespace dkfac {
namespace {

using ops::Layout;
using ops::PatchSpec;

constexpr double kX = 0.1F;  // The same number in f32 and f64.
/// A product sums 1024 rows at most where it is narrow, 4096 where it is wide; a running sum of n
/// equal terms errs by n/2 eps at most, and the rest is f64. Two more roundings.
constexpr double factor_of_rows(std::int64_t d) { return (d <= 192 ? 1024 : 4096) / 2 + 2; }

class ManyRows : public testing::EachBackend {
 protected:
  Tensor equal_rows(Shape shape) {
    Tensor x = Tensor::empty(ctx, shape, dtype());
    ops::fill(ctx, x, kX);
    return x;
  }
  /// The lower triangle of c = 0.5 * (1 before), with `rows` rows of weight 1/rows added.
  void expect_sums(ConstTensorView c, std::int64_t width) {
    const std::vector<double> found = testing::values(ctx, c);
    const std::int64_t d = c.dim(0);
    for (std::int64_t i = 0; i < d; ++i)
      for (std::int64_t j = 0; j <= i; ++j) {
        const double expected = (i < width ? kX : 1) * (j < width ? kX : 1) + 0.5;
        ASSERT_NEAR(found[static_cast<std::size_t>(i * d + j)], expected,
                    factor_of_rows(d) * epsilon() * expected)
            << d << ": " << i << ", " << j;
      }
  }
};
DKFAC_EACH_BACKEND(ManyRows);

TEST_P(ManyRows, OfAMatrixErrLikeThoseOfOneProduct) {
  for (const auto& [rows, width] : {std::pair<int, int>{401'408, 1}, {60'000, 20}, {9'001, 200}}) {
    const Tensor x = equal_rows({rows, width});
    for (const int count : {1, 2}) {
      set_threads(count);
      for (const int bias : {0, 1}) {
        Tensor c = Tensor::empty(ctx, {width + bias, width + bias}, dtype());
        ops::fill(ctx, c, 1);
        ops::gram(ctx, 1.0 / rows, x, 0.5, c);
        expect_sums(c, width);
      }
      set_threads(1);
    }
  }
}

TEST_P(ManyRows, OfPatchesAndOfGroupsErrLikeThoseOfOneProduct) {
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
    const PatchSpec s{10, 66, 66, 16, {3, 3, 1, 1, 0, 0}, layout};
    const Tensor x =
        equal_rows(layout == Layout::nhwc ? Shape{10, 66, 66, 16} : Shape{10, 16, 66, 66});
    const double alpha = 1 / static_cast<double>(s.rows());
    Tensor groups = Tensor::empty(ctx, {16, 10, 10}, dtype());
    ops::fill(ctx, groups, 1);
    ops::patch_gram(ctx, s, alpha, x, 0.5, groups);
    for (const std::int64_t g : {0, 15})
      expect_sums(groups.view().slice(0, g, 1).reshape({10, 10}), 9);
    PatchSpec one = s;
    one.c = 1;
    one.x_c = 16;
    Tensor c = Tensor::empty(ctx, {10, 10}, dtype());
    ops::fill(ctx, c, 1);
    ops::patch_gram(ctx, one, alpha, x, 0.5, c);
    expect_sums(c, 9);
  }
}

TEST(ManyRowsControl, AreBeyondARunningSum) {
  float sum = 0;
  for (int i = 0; i < 401'408; ++i) sum += static_cast<float>(kX) * static_cast<float>(kX);
  EXPECT_GT(std::abs(static_cast<double>(sum) / (401'408 * kX * kX) - 1),
            factor_of_rows(4608) * testing::eps<float>);
}

}  // namespace
}  // namespace dkfac
