#pragma once

#include <limits>

/// What is no number, for tests of every layer.
namespace dkfac {

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInf = std::numeric_limits<double>::infinity();

}  // namespace dkfac
