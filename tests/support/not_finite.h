#pragma once

#include <limits>

/// Values that are not finite, for tests of every layer.
namespace dkfac {

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInf = std::numeric_limits<double>::infinity();

}  // namespace dkfac
