#include "core/cuda/linalg_functors.h"

#include <array>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "core/cuda/copy_functors.h"
#include "core/shared/cuda/reduce_ops.h"
#include "support/not_finite.h"

// Device functors of linear algebra, run on the host.
namespace dkfac::cuda {
namespace {

/// Runs f(r, c) over rows and columns as for_each_2d does.
template <class F>
void over(std::int64_t rows, std::int64_t cols, F f) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c) f(r, c);
}

/// As reduce_rows of one row.
template <class Map>
std::int64_t first_of(std::int64_t i, std::int64_t count, Map map) {
  const First op;
  std::int64_t value = op.identity();
  for (std::int64_t k = 0; k < count; ++k) value = op(value, map(i, k));
  return value;
}

TEST(LinalgFunctors, KnowWhatIsFinite) {
  EXPECT_FALSE(element::is_bad(0.0));
  EXPECT_FALSE(element::is_bad(-std::numeric_limits<float>::max()));
  EXPECT_FALSE(element::is_bad(std::numeric_limits<double>::denorm_min()));
  EXPECT_TRUE(element::is_bad(kNan));
  EXPECT_TRUE(element::is_bad(kInf));
  EXPECT_TRUE(element::is_bad(-kInf));
}

/// Diagonals of batches of 3x3 matrices with row stride 4 and batch stride 13, among NaN.
struct Diagonals {
  explicit Diagonals(const std::vector<std::array<double, 3>>& diagonals)
      : data(13 * diagonals.size(), kNan), info(diagonals.size(), 0) {
    for (std::size_t i = 0; i < diagonals.size(); ++i)
      for (std::size_t k = 0; k < 3; ++k) data[13 * i + 5 * k] = diagonals[i][k];
  }
  void report() {
    for (std::size_t i = 0; i < info.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      const BadPivot<double> bad{data.data(), 13, 4, info.data()};
      ReportPivot{info.data()}(at, first_of(at, 3, bad));
    }
  }
  std::vector<double> data;
  std::vector<std::int32_t> info;
};

TEST(LinalgFunctors, ReportTheFirstBadPivotOfEachFactor) {
  Diagonals d({{1, 2, 3}, {1, kNan, 0}, {1, 2, kInf}, {0, 1, 1}, {1, -1, 1}});
  d.report();
  EXPECT_EQ(d.info, (std::vector<std::int32_t>{0, 2, 3, 1, 2}));
}

TEST(LinalgFunctors, DoNotLookAtPivotsThatWereNotComputed) {
  Diagonals d({{1, 2, -3}, {1, -2, kNan}, {kNan, 2, 3}});
  d.info = {3, 2, 3};
  d.report();
  EXPECT_EQ(d.info, (std::vector<std::int32_t>{3, 2, 1}));
}

TEST(LinalgFunctors, FindTheMatricesOfABatch) {
  std::array<float, 10> data{};
  std::array<float*, 3> to{};
  const Addresses<float> f{to.data(), data.data(), 4};
  for (std::int64_t i = 0; i < 3; ++i) f(i);
  EXPECT_EQ(to, (std::array<float*, 3>{data.data(), data.data() + 4, data.data() + 8}));
}

TEST(LinalgFunctors, WriteIdentitiesAndNothingElse) {
  std::vector<double> data(2 * 7, -1);
  over(2 * 2, 2, SetIdentity<double>{data.data(), 2, 7, 3});
  EXPECT_EQ(data, (std::vector<double>{1, 0, -1, 0, 1, -1, -1, 1, 0, -1, 0, 1, -1, -1}));
}

TEST(LinalgFunctors, ScaleRowsWithoutReadingWhatBetaZeroDrops) {
  std::vector<double> data{1, 2, -1, 3, 4, -1, -1, 5, 6, -1, 7, 8, -1, -1};
  over(2 * 2, 2, ScaleRows<double>{data.data(), 2, 7, 3, 2});
  EXPECT_EQ(data, (std::vector<double>{2, 4, -1, 6, 8, -1, -1, 10, 12, -1, 14, 16, -1, -1}));
  std::vector<double> nan(4, kNan);
  over(2, 2, ScaleRows<double>{nan.data(), 2, 4, 2, 0});
  EXPECT_EQ(nan, std::vector<double>(4, 0));
}

TEST(LinalgFunctors, MirrorEveryMatrixOfABatch) {
  // Two 2x2 matrices with row stride 3 and batch stride 7; the upper element is NaN.
  std::vector<double> data{1, kNan, -1, 2, 3, -1, -1, 4, kNan, -1, 5, 6, -1, -1};
  const LoadLower<double> load{data.data(), 2, 7, 3};
  const StoreUpper<double> store{data.data(), 2, 7, 3};
  over(2 * 2, 2, [&](auto r, auto c) { store(r, c, load(r, c)); });
  EXPECT_EQ(data, (std::vector<double>{1, 2, -1, 2, 3, -1, -1, 4, 5, -1, 5, 6, -1, -1}));
}

TEST(LinalgFunctors, CopyTheLowerTriangleUnlessItIsBad) {
  const std::vector<double> data{1, kNan, kNan, 2, 3, kNan};
  for (const std::int32_t flag : {0, 1}) {
    std::vector<double> to(4, kNan);
    over(2, 2, CopyLower<double>{data.data(), 3, &flag, to.data(), 2});
    EXPECT_EQ(to, flag == 0 ? (std::vector<double>{1, 0, 2, 3}) : std::vector<double>(4, 0));
  }
}

TEST(LinalgFunctors, FindABadElementInTheLowerTriangleAlone) {
  std::vector<double> data{1, kNan, kInf, 2, 3, kNan};
  const LowerNotFinite<double> bad{data.data(), 2, 3};
  for (std::int64_t k = 0; k < 4; ++k) EXPECT_EQ(bad(0, k), 0) << k;
  data[3] = -kInf;
  EXPECT_EQ(bad(0, 2), 1);
  std::int32_t flag = 0, info = 0;
  StoreEach<std::int32_t>{&flag}(0, 1);
  ReportNotFinite{&flag, &info, 3}(0);
  EXPECT_EQ(info, 3);
  StoreEach<std::int32_t>{&flag}(0, 0);
  ReportNotFinite{&flag, &info, 9}(0);
  EXPECT_EQ(info, 3);
}

TEST(LinalgFunctors, Transpose) {
  const std::vector<float> from{1, 2, -1, 3, 4, -1};
  std::vector<float> to(8, -1);
  const LoadAt<float> load{from.data(), 3, 1};
  const StoreAt<float> store{to.data(), 1, 4};
  over(2, 2, [&](auto r, auto c) { store(r, c, load(r, c)); });
  EXPECT_EQ(to, (std::vector<float>{1, 3, -1, -1, 2, 4, -1, -1}));
}

}  // namespace
}  // namespace dkfac::cuda
