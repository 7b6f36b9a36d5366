#pragma once

#include <string>
#include <vector>

namespace dkfac::app {

/// Returns the decimals that give a positive value three significant digits.
[[nodiscard]] int decimals_of(double value);
[[nodiscard]] std::string fixed(double value, int digits);
/// Formats three significant digits, or all before the point: "0.0123", "4.52", "37.1", "128",
/// "12345"; with an exponent below 1e-4 and from 1e7.
[[nodiscard]] std::string three_digits(double value);

enum class FirstColumn { left, right };
/// Formats rows as lines of columns, two spaces apart and aligned to the right.
[[nodiscard]] std::string lines_of(const std::vector<std::vector<std::string>>& rows,
                                   FirstColumn first);

}  // namespace dkfac::app
