#include "app/logging/number_text.h"

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

namespace dkfac::app {

int decimals_of(double value) {
  constexpr int kMaxDecimals = 6;
  if (!(value > 0) || !std::isfinite(value)) return 0;
  return std::clamp(2 - static_cast<int>(std::floor(std::log10(value))), 0, kMaxDecimals);
}

std::string fixed(double value, int digits) { return fmt::format("{:.{}f}", value, digits); }

std::string three_digits(double value) {
  const double size = std::abs(value);
  if (size >= 1e7 || (size > 0 && size < 1e-4)) return fmt::format("{:.2e}", value);
  return fixed(value, decimals_of(size));
}

std::string lines_of(const std::vector<std::vector<std::string>>& rows, FirstColumn first) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const auto& row : rows)
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  std::string out;
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string spaces(widths[c] - row[c].size(), ' ');
      const bool left = c == 0 && first == FirstColumn::left;
      out += (c > 0 ? "  " : "") + (left ? row[c] + spaces : spaces + row[c]);
    }
    out += '\n';
  }
  return out;
}

}  // namespace dkfac::app
