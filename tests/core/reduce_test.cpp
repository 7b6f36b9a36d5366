#include <cmath>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/ops.h"
#include "dkfac/core/random.h"
#include "dkfac/core/tensor.h"
#include "dkfac/core/threads.h"

#include "core/framed.h"
#include "support/near.h"
#include "support/not_finite.h"

namespace dkfac {
namespace {

using testing::eps;
using testing::Framed;
using testing::values;

template <class T>
class Reduce : public ::testing::Test {
 protected:
  Context ctx_;

  Tensor random(Shape shape, std::uint64_t seed = 1) {
    Tensor x = Tensor::empty(ctx_, shape, dtype_of<T>);
    Random source(seed);
    fill_normal(x, 0.1, 1, source);
    return x;
  }
  template <class Out = double>
  double sum(ConstTensorView x) {
    Out out = 99;
    ops::sum(ctx_, x, view_of(&out, {1}));
    return out;
  }
  double dot(ConstTensorView x, ConstTensorView y) {
    double out = 99;
    ops::dot(ctx_, x, y, view_of(&out, {1}));
    return out;
  }
  double max_abs(ConstTensorView x) {
    double out = 99;
    ops::max_abs(ctx_, x, view_of(&out, {1}));
    return out;
  }
};

using Computing = ::testing::Types<float, double>;
TYPED_TEST_SUITE(Reduce, Computing, testing::TypeNames);

TYPED_TEST(Reduce, SumAndDotMatchExtendedPrecision) {
  for (const std::int64_t n : {0, 1, 2, 15, 16, 17, 257, 40'000, 300'007}) {
    const Tensor x = this->random({n}, 1), y = this->random({n}, 2);
    long double sum = 0, dot = 0, sum_of_magnitudes = 0, dot_of_magnitudes = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const long double a = x.template data<TypeParam>()[i], b = y.template data<TypeParam>()[i];
      sum += a;
      dot += a * b;
      sum_of_magnitudes += std::abs(a);
      dot_of_magnitudes += std::abs(a * b);
    }
    // f64 accumulation in both dtypes: n * eps of f64 over the magnitudes, far below eps of f32.
    const double tolerance = static_cast<double>(n) * eps<double>;
    EXPECT_LE(std::abs(this->sum(x) - static_cast<double>(sum)),
              tolerance * static_cast<double>(sum_of_magnitudes));
    EXPECT_LE(std::abs(this->dot(x, y) - static_cast<double>(dot)),
              tolerance * static_cast<double>(dot_of_magnitudes));
  }
}

TYPED_TEST(Reduce, AccumulatesBeyondTheWidthOfF32) {
  // 2^24 + n ones: an f32 accumulator would stand still.
  constexpr std::int64_t kCount = 100'001;
  Tensor x = Tensor::empty(this->ctx_, {kCount}, dtype_of<TypeParam>);
  ops::fill(this->ctx_, x, 1.0);
  x.template data<TypeParam>()[0] = 0x1p24F;
  EXPECT_EQ(this->sum(x), 0x1p24 + kCount - 1);
  float stuck = 0x1p24F;
  for (int i = 1; i < kCount; ++i) stuck += 1.0F;
  EXPECT_EQ(stuck, 0x1p24F);  // Negative control.
}

TYPED_TEST(Reduce, ResultsDoNotDependOnTheNumberOfThreads) {
  // OpenMP's own synchronisation is invisible to a thread sanitizer, which runs with one thread.
  const char* asked = std::getenv("OMP_NUM_THREADS");
  if (asked != nullptr && std::string_view(asked) == "1") GTEST_SKIP() << "OMP_NUM_THREADS is 1";
  const Tensor x = this->random({700, 1001}, 3), y = this->random({700, 1001}, 4);
  const int before = threads();
  std::vector<double> first;
  for (const int count : {1, 2, 3, 5}) {
    set_threads(count);
    Tensor columns = Tensor::empty(this->ctx_, {1001}, dtype_of<TypeParam>);
    ops::col_sum(this->ctx_, 1.0, x, 0.0, columns);
    std::vector<double> all = values(this->ctx_, columns);
    all.push_back(this->sum(x));
    all.push_back(this->dot(x, y));
    all.push_back(this->sum(x.view().slice(1, 1, 900)));
    if (first.empty()) first = all;
    EXPECT_EQ(all, first) << count << " threads";
  }
  set_threads(before);
}

TYPED_TEST(Reduce, StaysInsideItsRows) {
  Framed<TypeParam> x(123, 45, static_cast<TypeParam>(kNan));
  x.set([](auto r, auto c) { return static_cast<TypeParam>(r - 2 * c); });
  double sum = 0, squares = 0;
  for (int r = 0; r < 123; ++r) {
    for (int c = 0; c < 45; ++c) {
      sum += r - 2 * c;
      squares += (r - 2 * c) * (r - 2 * c);
    }
  }
  EXPECT_EQ(this->sum(x.view()), sum);
  EXPECT_EQ(this->dot(x.view(), x.view()), squares);
  EXPECT_EQ(this->max_abs(x.view()), 122);
  EXPECT_EQ(this->sum(x.view().transposed()), sum);
  EXPECT_EQ(this->dot(x.view().transposed(), x.view().transposed()), squares);
  std::vector<TypeParam> column(45);
  ops::col_sum(this->ctx_, 1.0, x.view(), 0.0, view_of(column.data(), {45}));
  for (int c = 0; c < 45; ++c) {
    EXPECT_EQ(column[static_cast<std::size_t>(c)], 122 * 123 / 2 - 2 * c * 123);
  }
  float bad = 0;
  ops::count_nonfinite(this->ctx_, x.view(), view_of(&bad, {1}));
  EXPECT_EQ(bad, 0.0F);
}

TYPED_TEST(Reduce, DotPairsElementsOfDifferentStrides) {
  const Tensor x = this->random({40, 30}, 5);
  const Tensor copy = Tensor::copy_of(this->ctx_, x.view().transposed());
  const double expected = this->dot(x, x);
  // The order of the additions differs: n * eps over a sum of squares.
  EXPECT_NEAR(this->dot(copy, x.view().transposed()), expected, 1200 * eps<double> * expected);
  // Negative control: the wrong pairing is something else.
  EXPECT_GT(std::abs(this->dot(copy.view().reshape({40, 30}), x) - expected), 1e-3 * expected);
}

TYPED_TEST(Reduce, MaxAbsFindsTheLargestMagnitudeAnywhere) {
  for (const std::int64_t n : {1, 2, 31, 32, 33, 257, 100'003}) {
    Tensor x = this->random({n});
    for (const std::int64_t at : {std::int64_t{0}, n / 2, n - 1}) {
      auto* data = x.template data<TypeParam>();
      const TypeParam kept = std::exchange(data[at], TypeParam{-1000});
      EXPECT_EQ(this->max_abs(x), 1000.0);
      data[at] = kept;
    }
    EXPECT_LT(this->max_abs(x), 10.0);
  }
}

TYPED_TEST(Reduce, MaxAbsTakesNaNForInfinity) {
  for (const std::int64_t n : {1, 33, 50'000}) {
    for (const double bad : {kNan, kInf, -kInf}) {
      Tensor x = this->random({n});
      x.template data<TypeParam>()[n / 2] = static_cast<TypeParam>(bad);
      EXPECT_EQ(this->max_abs(x), kInf);
      // A NaN in a strided view, with larger numbers after it.
      EXPECT_EQ(this->max_abs(x.view().reshape({n, 1}).transposed()), kInf);
    }
  }
}

TYPED_TEST(Reduce, NothingSumsToZero) {
  const Tensor none = Tensor::empty(this->ctx_, {0, 7}, dtype_of<TypeParam>);
  EXPECT_EQ(this->sum(none), 0.0);
  EXPECT_EQ(this->dot(none, none), 0.0);
  EXPECT_EQ(this->max_abs(none), 0.0);
  std::vector<TypeParam> column(7, TypeParam{2});
  ops::col_sum(this->ctx_, 1.0, none, 0.5, view_of(column.data(), {7}));
  EXPECT_EQ(column, std::vector<TypeParam>(7, TypeParam{1}));
}

TYPED_TEST(Reduce, StoresIntoEitherComputingType) {
  const Tensor x = this->random({1000});
  EXPECT_EQ(this->template sum<float>(x), static_cast<float>(this->sum(x)));
}

TYPED_TEST(Reduce, ColSumMatchesALoop) {
  struct Size {
    std::int64_t rows, columns;
  };
  for (const auto& [rows, columns] :
       {Size{1, 1}, {2, 31}, {33, 64}, {257, 65}, {5, 1000}, {20'001, 16}, {3, 0}}) {
    const Tensor x = this->random({rows, columns}, 6);
    Tensor out = this->random({columns}, 7);
    std::vector<double> expected = values(this->ctx_, out);
    const std::vector<double> all = values(this->ctx_, x);
    for (std::size_t c = 0; c < expected.size(); ++c) {
      long double sum = 0;
      for (std::int64_t r = 0; r < rows; ++r) {
        sum += all[static_cast<std::size_t>(r) * expected.size() + c];
      }
      expected[c] = static_cast<double>(0.3L * sum) - 2 * expected[c];
    }
    ops::col_sum(this->ctx_, 0.3, x, -2.0, out);
    // One rounding to T of the result; sums cancel to about sqrt(rows), so 4 * n of eps<double>.
    const double tolerance = eps<TypeParam> + 4 * static_cast<double>(rows) * eps<double>;
    EXPECT_TRUE(testing::near(values(this->ctx_, out), expected, tolerance));
  }
}

TYPED_TEST(Reduce, ColSumWithBetaZeroDoesNotReadOut) {
  const Tensor x = this->random({10, 3});
  std::vector<TypeParam> strided(6, static_cast<TypeParam>(kNan));
  const TensorView out = view_of(strided.data(), {3, 2}).slice(1, 0, 1);
  const TensorView vector(out.raw(), out.dtype(), {3}, Strides{2}, Device::cpu());
  ops::col_sum(this->ctx_, 1.0, x, 0.0, vector);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(std::isnan(strided[i]), i % 2 == 1);
}

TYPED_TEST(Reduce, PropagatesNaN) {
  Tensor x = this->random({64, 100});
  x.template data<TypeParam>()[6399] = static_cast<TypeParam>(kNan);
  EXPECT_TRUE(std::isnan(this->sum(x)));
  EXPECT_TRUE(std::isnan(this->dot(x, x)));
  Tensor columns = Tensor::empty(this->ctx_, {100}, dtype_of<TypeParam>);
  ops::col_sum(this->ctx_, 1.0, x, 0.0, columns);
  EXPECT_TRUE(std::isnan(columns.template data<TypeParam>()[99]));
  EXPECT_FALSE(std::isnan(columns.template data<TypeParam>()[98]));
}

TYPED_TEST(Reduce, AllocatesNothingOnceItIsWarm) {
  const Tensor x = this->random({5000, 40});
  Tensor out = Tensor::empty(this->ctx_, {40}, dtype_of<TypeParam>);
  ops::col_sum(this->ctx_, 1.0, x, 0.0, out);
  const std::int64_t growths = this->ctx_.scratch_growths();
  for (int i = 0; i < 5; ++i) ops::col_sum(this->ctx_, 1.0, x, 0.0, out);
  EXPECT_EQ(this->ctx_.scratch_growths(), growths);
}

TYPED_TEST(Reduce, RefusesMismatches) {
  Context& ctx = this->ctx_;
  const Tensor x = this->random({4, 3}), y = this->random({3, 4});
  Tensor out = Tensor::zeros(ctx, {1}, DType::f64), two = Tensor::zeros(ctx, {2}, DType::f64);
  Tensor integer = Tensor::zeros(ctx, {1}, DType::i32);
  Tensor halves = Tensor::zeros(ctx, {4}, DType::f16);
  EXPECT_THROW(ops::dot(ctx, x, y, out), InvalidArgument);
  EXPECT_THROW(ops::dot(ctx, x, x, two), InvalidArgument);
  EXPECT_THROW(ops::sum(ctx, x, integer), InvalidArgument);
  EXPECT_THROW(ops::sum(ctx, halves, out), InvalidArgument);
  EXPECT_THROW(ops::max_abs(ctx, x, two), InvalidArgument);
  Tensor columns = this->random({4});
  EXPECT_THROW(ops::col_sum(ctx, 1, x, 0, columns), InvalidArgument);
  EXPECT_THROW(ops::col_sum(ctx, 1, x.view().transposed(), 0, columns), InvalidArgument);
  EXPECT_THROW(ops::col_sum(ctx, 1, columns, 0, columns), InvalidArgument);
}

}  // namespace
}  // namespace dkfac
