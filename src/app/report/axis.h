#pragma once

#include <string>
#include <vector>

namespace dkfac::app {

enum class Scale { linear, log };
enum class TickValues { any, whole };
/// Whether the ends of the data are kept or moved out to the next tick.
enum class Ends { keep, round };

struct Tick {
  double value = 0;
  std::string label;
};

struct Axis {
  Scale scale = Scale::linear;
  double low = 0, high = 1;  ///< low < high.
  std::vector<Tick> ticks;   ///< Ascending, all in [low, high].
  /// Where a value stands: 0 at low, 1 at high; outside for a value outside. A value that a
  /// logarithm cannot show stands at 0.
  [[nodiscard]] double fraction(double value) const;
};

/// The smallest of 1, 2, 5 times a power of ten that cuts `span` > 0 into at most `pieces`.
[[nodiscard]] double nice_step(double span, int pieces, TickValues values);

/// Ticks at multiples of a nice step, at most `pieces` + 1 of them, whose labels show value *
/// `factor`, e.g. 100 for percent. Equal ends are drawn apart.
[[nodiscard]] Axis linear_axis(double low, double high, int pieces, Ends ends,
                               TickValues values = TickValues::any, double factor = 1);
/// Ticks at 1, 2 and 5 times powers of ten, thinned out to powers when they are many. 0 < low.
[[nodiscard]] Axis log_axis(double low, double high);

}  // namespace dkfac::app
