#include "app/report/format.h"

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

namespace dkfac::app {
namespace {

template <class Text>
std::string range_text(const Spread& spread, Dash dash, Text text) {
  if (spread.count == 0) return "-";
  const std::string low = text(spread.min), high = text(spread.max);
  if (spread.count == 1 || low == high) return text(spread.mean);
  return fmt::format("{} [{}{}{}]", text(spread.mean), low, dash == Dash::en ? "\u2013" : "-",
                     high);
}

std::string epochs_number(double epochs) {
  return std::abs(epochs - std::round(epochs)) < 1e-9 ? fixed(epochs, 0) : fixed(epochs, 1);
}

}  // namespace

std::string grouped(std::int64_t value) {
  std::string text = fmt::format("{}", value);
  const std::ptrdiff_t first = value < 0 ? 1 : 0;
  for (std::ptrdiff_t at = std::ssize(text) - 3; at > first; at -= 3)
    text.insert(static_cast<std::size_t>(at), 1, ',');
  return text;
}

std::string percent_target(double accuracy) { return fmt::format("{:.6g} %", 100 * accuracy); }

std::string target_text(const Targets& target) {
  std::string out = target.accuracy ? percent_target(*target.accuracy) : "";
  if (target.top5) out += (out.empty() ? "top-5 " : " and top-5 ") + percent_target(*target.top5);
  if (target.loss) out += fmt::format("{}loss {:.6g}", out.empty() ? "" : " and ", *target.loss);
  return out;
}

std::string value_text(Respect respect, const Spread& spread, Dash dash) {
  if (respect == Respect::epochs) return range_text(spread, dash, epochs_number);
  const bool accuracy = is_accuracy(respect);
  const double factor = accuracy ? 100 : respect == Respect::step ? 1e3 : 1;
  const int decimals = accuracy ? 2 : decimals_of(factor * spread.mean);
  return range_text(spread, dash, [&](double x) { return fixed(factor * x, decimals); });
}

std::string with_interval(const Spread& spread, double factor, Sign sign) {
  if (spread.count == 0) return "-";
  const double half = factor * spread.half_width.value_or(0);
  const double size = std::max(std::abs(factor * spread.mean), half);
  const int digits = size > 0 && size < 0.1 ? decimals_of(size) : 2;
  std::string text = fixed(factor * spread.mean, digits);
  if (sign == Sign::always && !text.starts_with('-')) text.insert(0, 1, '+');
  return spread.half_width ? text + " \u00b1 " + fixed(half, digits) : text;
}

std::string capitalized(std::string text) {
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z')
    text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text;
}

std::string join_names(const std::vector<std::string>& names) {
  std::string out;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) out += i + 1 == names.size() ? " and " : ", ";
    out += names[i];
  }
  return out;
}

}  // namespace dkfac::app
