#pragma once

#include <string>
#include <vector>

namespace dkfac::app {

enum class Scale { linear, log };
enum class TickValues { any, whole };
/// Whether the ends of an axis are those of the data or the next ticks outside.
enum class Ends { keep, round };

struct Tick {
  double value = 0;
  std::string label;
};

struct Axis {
  Scale scale = Scale::linear;
  double low = 0, high = 1;  ///< low < high.
  std::vector<Tick> ticks;   ///< Ascending, all in [low, high].
  /// Position of a value: 0 at low, 1 at high; outside [0, 1] for a value outside. A value without
  /// a logarithm is at 0 on a logarithmic axis.
  [[nodiscard]] double fraction(double value) const;
};

/// Returns the smallest of 1, 2, 5 times a power of ten that divides `span` > 0 into at most
/// `pieces`.
[[nodiscard]] double nice_step(double span, int pieces, TickValues values);

/// Makes an axis with ticks at multiples of a nice step, at most `pieces` + 1 of them. Labels show
/// value * `factor`, such as 100 for percent. Equal ends are widened.
[[nodiscard]] Axis linear_axis(double low, double high, int pieces, Ends ends,
                               TickValues values = TickValues::any, double factor = 1);
/// Makes an axis with ticks at 1, 2 and 5 times powers of ten, or at powers only when they are
/// many. 0 < low.
[[nodiscard]] Axis log_axis(double low, double high);

}  // namespace dkfac::app
