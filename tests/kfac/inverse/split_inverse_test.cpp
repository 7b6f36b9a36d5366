#include "kfac/inverse/split_inverse.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/ops.h"
#include "dkfac/kfac/inverse.h"

#include "kfac/inverse/block_triangular.h"
#include "support/both_backends.h"
#include "support/fisher.h"
#include "support/near.h"

// A factor that several ranks invert together, against LU in f64 and against one rank.
namespace dkfac::kfac {
namespace {

using namespace testing::fisher;
using testing::eps;
using testing::near;
using testing::values;

constexpr double kShift = 0.5;

class SplitInverse : public testing::BothBackends {
 protected:
  /// The result of the root, the last rank: [d,d].
  [[nodiscard]] static Vector split(const Matrix& m, int ranks, DType dtype, double shift = kShift,
                                    bool factored = false) {
    Vector result;
    comm::run_ranks(ranks, [&](auto comm) {
      Context ctx(Device::cpu(), {.backend = GetParam()});
      const int root = ranks - 1;
      SplitMatrix split{.dim = m.rows, .dtype = dtype, .factored = factored};
      Tensor average, out;
      if (comm->rank() == root) {
        average = tensor(ctx, packed(m), {ops::packed_size(m.rows)}, dtype);
        out = Tensor::zeros(ctx, {m.rows, m.rows}, dtype);
        split.average = average;
        split.damping = view_of(&shift, {1});
      }
      invert_split(ctx, *comm, root, split, out);
      if (comm->rank() == root) result = values(ctx, out);
    });
    return result;
  }
  [[nodiscard]] Vector on_one_rank(const Matrix& m, DType dtype) {
    const Tensor average = tensor(ctx, packed(m), {ops::packed_size(m.rows)}, dtype);
    Tensor out = Tensor::zeros(ctx, {m.rows, m.rows}, dtype),
           info = Tensor::zeros(ctx, {1}, DType::i32);
    invert_factor(ctx, average, kShift, out, info);
    return values(ctx, out);
  }
  [[nodiscard]] static Matrix matrix(std::int64_t d) {
    Random random(static_cast<std::uint64_t>(d));
    return random_spd(d, random);
  }
};

TEST_P(SplitInverse, IsThatOfOneRankOnAnyNumberOfRanks) {
  for (const std::int64_t d : {1, 33, 290}) {
    const Matrix m = matrix(d);
    const Vector exact = inverse(plus_diagonal(m, kShift)).v;
    const auto n = static_cast<double>(d);
    for (const int ranks : {1, 2, 3, 5})
      for (const DType dtype : {DType::f64, DType::f32}) {
        const Vector result = split(m, ranks, dtype);
        const double rounding = dtype == DType::f64 ? eps<double> : eps<float>;
        EXPECT_TRUE(near(result, exact, 4 * n * rounding)) << d << " over " << ranks;
        EXPECT_TRUE(near(result, on_one_rank(m, dtype), 4 * n * rounding))
            << d << " over " << ranks;
      }
    // Negative control: another damping is told apart.
    EXPECT_FALSE(near(split(m, 2, DType::f64, kShift * (1 + 1e-9)), exact, 4 * n * eps<double>));
  }
}

TEST_P(SplitInverse, HasTheSameBitsInEveryRun) {
  const Matrix m = matrix(200);
  for (const int ranks : {2, 3})
    EXPECT_EQ(split(m, ranks, DType::f32), split(m, ranks, DType::f32));
}

TEST_P(SplitInverse, MakesTheBlockedCholeskyFactor) {
  for (const std::int64_t d : {33, 290}) {
    const Matrix m = matrix(d);
    Tensor expected = tensor(ctx, plus_diagonal(m, kShift).v, {d, d}),
           info = Tensor::zeros(ctx, {1}, DType::i32);
    ops::potrf(ctx, expected, info);
    invert_diagonal_blocks(ctx, expected);
    Matrix blocked(d, d);
    blocked.v = values(ctx, expected);
    for_blocks(d, [&](std::int64_t k, std::int64_t n) {  // Above the blocks there is nothing.
      for (std::int64_t row = k; row < k + n; ++row)
        for (std::int64_t column = k + n; column < d; ++column) blocked(row, column) = 0;
    });
    for (const int ranks : {1, 2, 3}) {
      Matrix result(d, d);
      result.v = split(m, ranks, DType::f64, kShift, true);
      for_blocks(d, [&](std::int64_t k, std::int64_t n) {
        for (std::int64_t row = k; row < k + n; ++row)
          for (std::int64_t column = k + n; column < d; ++column) result(row, column) = 0;
      });
      EXPECT_TRUE(near(result.v, blocked.v, 4 * static_cast<double>(d) * eps<double>)) << ranks;
    }
  }
}

TEST_P(SplitInverse, LeavesANaNOnTheDiagonalWhereOneRankFails) {
  Matrix m = matrix(150);
  for (const std::int64_t bad : {0, 70, 149}) {
    for (const double diagonal : {-1e3, std::numeric_limits<double>::quiet_NaN(),
                                  -std::numeric_limits<double>::infinity()}) {
      Matrix broken = m;
      broken(bad, bad) = diagonal;
      for (const int ranks : {1, 2, 3})
        for (const bool factored : {false, true}) {
          const Vector result = split(broken, ranks, DType::f64, kShift, factored);
          EXPECT_TRUE(std::isnan(result.back())) << bad << " of " << diagonal;
        }
    }
  }
}

DKFAC_BOTH_BACKENDS(SplitInverse);

// The table of docs/distribution.md, "A factor on several ranks".
TEST(SplitFlops, AreThoseOfTheRankThatIsWaitedFor) {
  const double all = std::pow(4608.0, 3);
  const auto speedup = [all](int ranks) {
    return std::round(100 * all / split_flops(4608, ranks)) / 100;
  };
  EXPECT_EQ(speedup(1), 0.92);
  EXPECT_EQ(speedup(2), 1.77);
  EXPECT_EQ(speedup(4), 3.27);
  EXPECT_EQ(speedup(8), 5.55);
}

TEST(SplitFlops, AreCountedStepByStep) {
  // Two blocks of 32: both ranks have one. Factorise, invert and multiply the first; update and
  // factorise the second; then the first column of the inverse, twice over the triangle.
  const double w = 32, w3 = w * w * w;
  const double path = (w3 / 3 + w3 + 2 * w3) + 2 * w3 + (w3 / 3 + w3);
  EXPECT_DOUBLE_EQ(split_flops(64, 2, true), path);
  EXPECT_DOUBLE_EQ(split_flops(64, 2), path + 2 * (2 * 2 * w3 + 2 * w3));
  EXPECT_DOUBLE_EQ(split_flops(64, 1), path + 2 * (2 * 2 * w3 + 2 * 2 * w3));
}

TEST(SplitRanks, HaveAtLeastFourBlocksEach) {
  EXPECT_EQ(split_ranks(224), 1);
  EXPECT_EQ(split_ranks(256), 1);
  EXPECT_EQ(split_ranks(512), 2);
  EXPECT_EQ(split_ranks(2304), 4);
  EXPECT_EQ(split_ranks(4608), 8);
  EXPECT_EQ(split_ranks(50257), 8);
}

TEST(SplitNumel, IsOfColumnsOutPanelsAndColumnsBack) {
  // Blocks of columns [64,32] and [32,32]; the root keeps at least the shorter one.
  EXPECT_EQ(split_numel(64, 1), 0);
  EXPECT_EQ(split_numel(64, 2), 3072 + 2 * 2048);
  EXPECT_EQ(split_numel(64, 2, true), 3072 + 2048);
}

}  // namespace
}  // namespace dkfac::kfac
