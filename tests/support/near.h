#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/ops.h"
#include "dkfac/core/tensor.h"

namespace dkfac::testing {

template <class T>
inline constexpr double eps = std::numeric_limits<T>::epsilon();

/// Any view of floating dtype, in row-major order, as doubles.
inline std::vector<double> values(Context& ctx, ConstTensorView x) {
  std::vector<double> out(static_cast<std::size_t>(x.numel()));
  if (!out.empty()) ops::cast(ctx, x, view_of(out.data(), x.shape()));
  return out;
}

/// max |actual - expected| / max(max |expected|, tiny); infinity for a size mismatch or a NaN.
inline double relative_error(std::span<const double> actual, std::span<const double> expected) {
  if (actual.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double difference = 0, scale = std::numeric_limits<double>::min();
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double d = std::abs(actual[i] - expected[i]);
    if (!(d <= std::numeric_limits<double>::max())) return std::numeric_limits<double>::infinity();
    difference = std::max(difference, d);
    scale = std::max(scale, std::abs(expected[i]));
  }
  return difference / scale;
}

/// EXPECT_TRUE(near(actual, expected, c * n * eps<T>)): relative to the largest expected value.
inline ::testing::AssertionResult near(std::span<const double> actual,
                                       std::span<const double> expected, double tolerance) {
  const double error = relative_error(actual, expected);
  if (error <= tolerance) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "relative error " << error << " > " << tolerance << " (sizes " << actual.size() << ", "
         << expected.size() << ")";
}

}  // namespace dkfac::testing
