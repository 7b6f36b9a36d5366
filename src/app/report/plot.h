#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/report/axis.h"
#include "app/report/series.h"

namespace dkfac::app {

/// Point where a group reaches the target: a mark on the target line.
struct Mark {
  std::size_t style = 0;
  double x = 0;
  std::string text;  ///< Tooltip.
};

/// One picture with axes: a line, a band and marks for each curve.
struct Plot {
  std::string title, x_label;
  Measure measure = Measure::test_accuracy;
  Axis x, y;
  std::vector<Curve> curves;
  std::optional<double> target;
  std::vector<Mark> marks;
};

inline constexpr double kPlotWidth = 560, kPlotHeight = 330;

/// Makes the y axis of accuracy. It starts below the target or the accuracy of most epochs,
/// whichever is lower. Neither the first epochs nor a group that learns nothing compress the rest.
[[nodiscard]] Axis accuracy_axis(std::span<const Curve> curves, std::optional<double> target);
/// Makes the y axis of loss, logarithmic when the means are positive and span more than a factor of
/// ten. Losses a thousand times the median are left out at the top.
[[nodiscard]] Axis loss_axis(std::span<const Curve> curves);

/// Formats a value: "87.20 %", "0.412".
[[nodiscard]] std::string value_text(Measure measure, double value);

/// Returns a <g> of kPlotWidth x kPlotHeight. `id` makes the names inside unique in a page.
[[nodiscard]] std::string draw(const Plot& plot, const std::string& id);

}  // namespace dkfac::app
