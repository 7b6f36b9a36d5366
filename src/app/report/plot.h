#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/report/axis.h"
#include "app/report/series.h"

namespace dkfac::app {

/// Where a group reaches the target: a mark on the target line.
struct Mark {
  std::size_t style = 0;
  double x = 0;
  std::string text;  ///< Shown when pointed at.
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

/// The y axis of accuracy: from below the target or what most epochs reach, whichever is lower, so
/// that neither the first epochs nor a group that learns nothing press the rest to the top.
[[nodiscard]] Axis accuracy_axis(std::span<const Curve> curves, std::optional<double> target);
/// Logarithmic when the means are positive and span more than a factor of ten. Losses a thousand
/// times the median are left out at the top.
[[nodiscard]] Axis loss_axis(std::span<const Curve> curves);

/// A value as it is shown: "87.20 %", "0.412".
[[nodiscard]] std::string value_text(Measure measure, double value);

/// As a <g> of kPlotWidth x kPlotHeight. `id` makes the names inside unique in a page.
[[nodiscard]] std::string draw(const Plot& plot, const std::string& id);

}  // namespace dkfac::app
