#pragma once

#include <cstddef>
#include <string>
#include <vector>

/// Colours and CSS, light and dark.
namespace dkfac::app {

/// Class names of the style of a group, e.g. "c0 d0": colour and dash pattern. Both repeat, with
/// different periods.
[[nodiscard]] std::string style_class(std::size_t style);
/// Where a phase stands among those of a step, and the number of its class, e.g. 3 of "p3"; the
/// last one for others than the known ones.
[[nodiscard]] std::size_t phase_number(const std::string& phase);

/// Of everything inside an SVG picture.
[[nodiscard]] std::string picture_css();
/// Of the bars of phases.
[[nodiscard]] std::string phase_css();
/// Of the page around the pictures, narrow and printed as well.
[[nodiscard]] std::string page_css();

/// A short piece of line in the style of a group, as a whole SVG picture.
[[nodiscard]] std::string swatch(std::size_t style);
/// Names beside the lines in the styles 0, 1, ..., as an element of a page.
[[nodiscard]] std::string legend(const std::vector<std::string>& names);

}  // namespace dkfac::app
