#include <limits>

#include <gtest/gtest.h>

#include "dkfac/core/ops.h"

#include "support/matrices.h"
#include "support/on_device.h"

namespace dkfac {
namespace {

using testing::Dense;
using testing::host_waits;
using testing::Padded;
using testing::PaddedOnDevice;

constexpr std::int64_t kOrders[] = {1, 2, 5, 33, 64, 100};

class DeviceCholesky : public testing::OnDevice {
 protected:
  /// What an operation reports; it must not make the host wait.
  template <class Operation>
  std::int32_t status(Operation operation, TensorView a) {
    Tensor info = Tensor::empty(ctx, {1}, DType::i32);
    const std::int64_t waits = host_waits();
    operation(ctx, a, info);
    EXPECT_EQ(host_waits(), waits);
    return *testing::to_host(ctx, info).view().data<std::int32_t>();
  }
  std::int32_t potrf(PaddedOnDevice& a) { return status(ops::potrf, a.view()); }
  std::int32_t potri(PaddedOnDevice& a) { return status(ops::potri, a.view()); }

  /// The lower triangle with zeros above, where everything else must still be NaN.
  Dense lower_of(PaddedOnDevice& a) {
    Dense out(a.view().dim(0), a.view().dim(1));
    out.data = a.values(ctx);
    for (std::int64_t i = 0; i < out.rows; ++i) {
      for (std::int64_t j = i + 1; j < out.cols; ++j) {
        EXPECT_TRUE(std::isnan(out(i, j))) << i << " " << j;
        out(i, j) = 0;
      }
    }
    EXPECT_TRUE(a.gaps_untouched(ctx));
    return out;
  }
  PaddedOnDevice lower(const Dense& a) {
    Padded host = Padded::lower(dtype(), a);
    return {ctx, host.view()};
  }
};
DKFAC_ON_DEVICE(DeviceCholesky);

TEST_P(DeviceCholesky, FactorsAndInvertsKnownMatrices) {
  for (const std::int64_t n : kOrders) {
    const testing::KnownSpd known = testing::decaying_matrix(n, 0.7);
    PaddedOnDevice a = lower(known.a);
    ASSERT_EQ(potrf(a), 0) << n;
    EXPECT_TRUE(testing::near(lower_of(a).data, known.factor.data, tolerance())) << n;
    ASSERT_EQ(potri(a), 0) << n;
    EXPECT_TRUE(testing::near(lower_of(a).data, testing::lower(known.inverse).data, tolerance()))
        << n;
    // Control: another matrix has another inverse.
    const Dense other = testing::lower(testing::decaying_matrix(n, 0.71).inverse);
    EXPECT_EQ(testing::near(lower_of(a).data, other.data, tolerance()), n == 1);
  }
}

TEST_P(DeviceCholesky, AgreesWithTheHost) {
  Random random(1);
  const std::int64_t n = 90;
  Padded host = Padded::lower(dtype(), testing::random_spd(n, random));
  PaddedOnDevice a(ctx, host.view());
  std::int32_t info = -7;
  ops::potrf(cpu, host.view(), view_of(&info, {1}));
  ASSERT_EQ(potrf(a), info);
  EXPECT_TRUE(testing::near(lower_of(a).data, testing::lower(host.values()).data, tolerance()));
  ops::potri(cpu, host.view(), view_of(&info, {1}));
  ASSERT_EQ(potri(a), info);
  EXPECT_TRUE(testing::near(lower_of(a).data, testing::lower(host.values()).data, tolerance()));
}

TEST_P(DeviceCholesky, ReportsTheFirstBadMinor) {
  for (const std::int64_t n : {1, 2, 33, 65}) {
    for (const std::int64_t order : {std::int64_t{1}, n / 2 + 1, n}) {
      for (const double pivot : {-1.0, 0.0}) {
        PaddedOnDevice bad = lower(testing::bad_minor_matrix(n, order, pivot));
        EXPECT_EQ(potrf(bad), order) << n << " " << pivot;
      }
      PaddedOnDevice good = lower(testing::bad_minor_matrix(n, order, 1));
      EXPECT_EQ(potrf(good), 0) << n;
    }
  }
}

/// At that row, or at an earlier pivot: a blocked factorization may multiply the element by zeros
/// of its tile, which spreads it. What the library relies on is that no such matrix passes.
TEST_P(DeviceCholesky, RefusesANonFiniteElementByItsRow) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const double bad : {Padded::kNan, inf, -inf}) {
    for (const std::int64_t n : {1, 5, 40}) {
      for (const std::int64_t row : {std::int64_t{0}, n / 2, n - 1}) {
        for (const std::int64_t col : {std::int64_t{0}, row / 2, row}) {
          Dense a = testing::min_matrix(n).a;
          a(row, col) = bad;
          PaddedOnDevice p = lower(a);
          const std::int32_t order = potrf(p);
          EXPECT_GE(order, 1) << n << " " << row << " " << col << " " << bad;
          EXPECT_LE(order, row + 1) << n << " " << row << " " << col << " " << bad;
        }
      }
    }
  }
}

TEST_P(DeviceCholesky, RefusesToInvertASingularFactor) {
  Dense l = testing::min_matrix(9).factor;
  l(4, 4) = 0;
  PaddedOnDevice p = lower(l);
  EXPECT_GT(potri(p), 0);
  PaddedOnDevice regular = lower(testing::min_matrix(9).factor);
  EXPECT_EQ(potri(regular), 0) << "control";
}

TEST_P(DeviceCholesky, AnswersTheEmptyMatrix) {
  PaddedOnDevice none(ctx, dtype(), 0, 0);
  EXPECT_EQ(potrf(none), 0);
  EXPECT_EQ(potri(none), 0);
}

TEST_P(DeviceCholesky, KeepsItsScratch) {
  const auto factor = [&] {
    PaddedOnDevice a = lower(testing::min_matrix(50).a);
    EXPECT_EQ(potrf(a) + potri(a), 0);
  };
  factor();
  factor();
  const std::int64_t growths = ctx.scratch_growths();
  factor();
  EXPECT_EQ(ctx.scratch_growths(), growths);
}

}  // namespace
}  // namespace dkfac
