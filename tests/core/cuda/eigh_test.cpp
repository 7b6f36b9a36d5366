#include <limits>

#include <gtest/gtest.h>

#include "dkfac/core/ops.h"

#include "support/matrices.h"
#include "support/on_device.h"

namespace dkfac {
namespace {

using testing::Dense;
using testing::Padded;
using testing::PaddedOnDevice;

class DeviceEigh : public testing::OnDevice {
 protected:
  struct Result {
    std::int32_t info;
    std::vector<double> values;
    Dense vectors;
  };
  /// Of the lower triangle of a, with NaN above it and in the gaps.
  Result eigh(const Dense& a) {
    Padded host = Padded::lower(dtype(), a);
    PaddedOnDevice device(ctx, host.view());
    Tensor w = Tensor::empty(ctx, {a.rows}, dtype()), info = Tensor::empty(ctx, {1}, DType::i32);
    ops::eigh(ctx, device.view(), w, info);
    Result out{*testing::to_host(ctx, info).view().data<std::int32_t>(),
               testing::device_values(ctx, w), Dense(a.rows, a.cols)};
    out.vectors.data = device.values(ctx);
    EXPECT_TRUE(device.gaps_untouched(ctx));
    return out;
  }
  /// v diag(w) v', and v'v, for vectors in the columns of v.
  void expect_decomposes(const Dense& a, const Result& r) {
    const Dense v = r.vectors;
    const Dense scaled = testing::make_dense(v.rows, v.cols, [&](auto i, auto j) {
      return v(i, j) * r.values[static_cast<std::size_t>(j)];
    });
    const double bound = 10 * tolerance();
    EXPECT_TRUE(
        testing::near(testing::multiply(scaled, testing::transpose(v)).data, a.data, bound));
    EXPECT_TRUE(testing::near(testing::multiply(testing::transpose(v), v).data,
                              testing::identity(v.rows).data, bound));
  }
};
DKFAC_ON_DEVICE(DeviceEigh);

TEST_P(DeviceEigh, FindsTheSpectrumOfTheSecondDifference) {
  for (const std::int64_t n : {1, 2, 7, 40}) {
    const testing::KnownSpectrum known = testing::second_difference(n);
    const Result r = eigh(known.a);
    ASSERT_EQ(r.info, 0) << n;
    EXPECT_TRUE(testing::near(r.values, known.eigenvalues, tolerance())) << n;
    expect_decomposes(known.a, r);
  }
}

TEST_P(DeviceEigh, KeepsVectorsInColumns) {
  // 1/3 {{1, 2, 2}, {-2, -1, 2}, {2, -2, 1}} with its rows in another order: whatever the signs,
  // its rows and its columns differ.
  constexpr double kVectors[3][3] = {{2, -2, 1}, {1, 2, 2}, {-2, -1, 2}};
  Dense q = testing::make_dense(3, 3, [&](auto r, auto c) { return kVectors[r][c] / 3; });
  const Dense scaled = testing::make_dense(
      3, 3, [&](auto r, auto c) { return q(r, c) * static_cast<double>(1 << c); });
  const Result r = eigh(testing::multiply(scaled, testing::transpose(q)));
  ASSERT_EQ(r.info, 0);
  EXPECT_TRUE(testing::near(r.values, std::vector<double>{1, 2, 4}, tolerance()));
  for (std::int64_t i = 0; i < 3; ++i)
    for (std::int64_t j = 0; j < 3; ++j)
      EXPECT_NEAR(std::abs(r.vectors(i, j)), std::abs(q(i, j)), tolerance()) << i << " " << j;
}

TEST_P(DeviceEigh, DecomposesRandomAndRepeatedSpectra) {
  Random random(1);
  const Dense spd = testing::random_spd(30, random);
  Padded rounded(dtype(), spd);
  const Result r = eigh(spd);
  ASSERT_EQ(r.info, 0);
  expect_decomposes(rounded.values(), r);
  const testing::RankOneUpdate update = testing::rank_one_update(20, 0.5, random);
  const Result repeated = eigh(update.a);
  ASSERT_EQ(repeated.info, 0);
  EXPECT_TRUE(testing::near(repeated.values, update.eigenvalues, tolerance()));
  expect_decomposes(update.a, repeated);
  // Control: these vectors belong to no other matrix.
  Dense other = update.a;
  other(3, 3) += 1;
  EXPECT_FALSE(testing::near(
      testing::multiply(testing::multiply(testing::transpose(repeated.vectors), other),
                        repeated.vectors)
          .data,
      testing::make_dense(20, 20,
                          [&](auto i, auto j) {
                            return i == j ? repeated.values[static_cast<std::size_t>(i)] : 0.0;
                          })
          .data,
      10 * tolerance()));
}

TEST_P(DeviceEigh, ReportsWhatIsNotFinite) {
  for (const double bad : {Padded::kNan, std::numeric_limits<double>::infinity()}) {
    Dense a = testing::identity(6);
    a(4, 2) = bad;
    EXPECT_EQ(eigh(a).info, 7);
  }
}

TEST_P(DeviceEigh, AnswersTheEmptyAndTheZeroMatrix) {
  EXPECT_EQ(eigh(Dense(0, 0)).info, 0);
  const Result zero = eigh(Dense(5, 5));
  EXPECT_EQ(zero.info, 0);
  EXPECT_EQ(zero.values, std::vector<double>(5, 0));
}

}  // namespace
}  // namespace dkfac
