#pragma once

#include <cstdint>

namespace dkfac::kfac {

/// What must be finite for an average with the statistic to stay so; infinite where its sum over
/// ranks overflowed.
enum class FiniteTest : std::uint8_t {
  /// The traces of packed triangles: no element of a positive semidefinite matrix exceeds its
  /// largest diagonal one.
  traces,
  squares,  ///< The sum of all elements squared, of rows X that stand for X'X.
  elements  ///< Every element.
};

/// average <- weight * statistic + (1 - weight) * average, unless the statistic is refused.
struct MergeRule {
  FiniteTest test = FiniteTest::elements;
  double weight = 1;
  std::int64_t groups = 1, dim = 0;  ///< Of the triangles.
};

}  // namespace dkfac::kfac
