#include "app/report/axis.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/core.h>

namespace dkfac::app {
namespace {

/// Rounding of k * step relative to the span; far below a pixel.
constexpr double kSlack = 1e-9;
constexpr std::size_t kMaxLogTicks = 7;

/// Formats a number without redundant digits: "0.05", "20", "1e+06".
std::string short_number(double value) {
  const double size = std::abs(value);
  if (size != 0 && (size >= 1e6 || size < 1e-4)) return fmt::format("{:.0e}", value);
  return fmt::format("{:.10g}", value);
}

/// Widens a range that is a single value or empty.
void part(double& low, double& high) {
  if (!std::isfinite(high - low) || low > high) {
    low = 0;
    high = 1;
  }
  const double room = std::max(std::abs(low), std::abs(high));
  if (high - low > kSlack * room && high > low) return;
  const double half = room > 0 ? 0.05 * room : 0.5;
  low -= half;
  high += half;
}

void add_ticks(Axis& axis, double step, double factor) {
  const double slack = kSlack * (axis.high - axis.low);
  const double first = std::ceil((axis.low - slack) / step);
  for (double k = first; k * step <= axis.high + slack; ++k) {
    const double value = std::clamp(k * step, axis.low, axis.high);
    // Rounded to the step's own digits; otherwise 0.3 would be 0.30000000000000004.
    const double digits = std::pow(10.0, std::floor(std::log10(step * factor)) - 1);
    const double shown = std::round(value * factor / digits) * digits;
    axis.ticks.push_back({value, short_number(shown == 0 ? 0.0 : shown)});
  }
}

}  // namespace

double Axis::fraction(double value) const {
  if (scale == Scale::linear) return (value - low) / (high - low);
  if (!(value > 0)) return 0;
  // Differences of logarithms, as the quotients may overflow.
  return (std::log(value) - std::log(low)) / (std::log(high) - std::log(low));
}

double nice_step(double span, int pieces, TickValues values) {
  const double rough = span / std::max(1, pieces);
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double digit : {5.0, 2.0, 1.0})
    if (digit * power >= rough * (1 - kSlack)) step = digit * power;
  return values == TickValues::whole ? std::max(1.0, std::round(step)) : step;
}

Axis linear_axis(double low, double high, int pieces, Ends ends, TickValues values, double factor) {
  part(low, high);
  const double step = nice_step(high - low, pieces, values);
  if (ends == Ends::round) {
    low = std::floor(low / step + kSlack) * step;
    high = std::ceil(high / step - kSlack) * step;
  }
  Axis axis{.scale = Scale::linear, .low = low, .high = high, .ticks = {}};
  add_ticks(axis, step, factor);
  return axis;
}

Axis log_axis(double low, double high) {
  low = std::max(low, std::numeric_limits<double>::min());
  high = std::max(high, low);
  // A small margin, so that no line runs along the frame.
  Axis axis{.scale = Scale::log, .low = low / 1.08, .high = high * 1.08, .ticks = {}};
  const auto collect = [&axis](std::initializer_list<double> digits, int every) {
    axis.ticks.clear();
    const int first = static_cast<int>(std::floor(std::log10(axis.low)));
    const int last = static_cast<int>(std::ceil(std::log10(axis.high)));
    for (int power = first; power <= last; ++power) {
      if (power % every != 0) continue;
      for (const double digit : digits) {
        const double value = digit * std::pow(10.0, power);
        if (value < axis.low || value > axis.high) continue;
        axis.ticks.push_back({value, short_number(value)});
      }
    }
  };
  collect({1, 2, 5}, 1);
  for (int every = 1; axis.ticks.size() > kMaxLogTicks; ++every) collect({1}, every);
  if (axis.ticks.empty()) collect({1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9}, 1);
  return axis;
}

}  // namespace dkfac::app
