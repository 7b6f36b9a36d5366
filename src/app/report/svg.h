#pragma once

#include <span>
#include <string>
#include <vector>

#include "app/report/plot.h"
#include "app/shared/report.h"

namespace dkfac::app {

/// Makes the plot of these runs against epochs or seconds, with axes that fit all groups.
[[nodiscard]] Plot make_plot(std::span<const RunGroup> groups, const Comparison& comparison,
                             Measure measure, Against against);
/// Returns a complete picture that scales with its box, for a page that has picture_css().
[[nodiscard]] std::string inline_svg(const Plot& plot, const std::string& id);

/// A plot, and the names of its styles 0, 1, ....
struct Panel {
  Plot plot = {};
  std::vector<std::string> names = {};
};
/// Returns a picture for a file: panels, two to a row, with their names below, under `heading` of
/// the given height.
[[nodiscard]] std::string svg_file(const std::string& label, const std::string& heading,
                                   double heading_height, std::span<const Panel> panels);

}  // namespace dkfac::app
