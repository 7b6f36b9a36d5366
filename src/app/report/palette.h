#pragma once

#include <cstddef>
#include <string>

namespace dkfac::app {

/// Class names of the style of a group, e.g. "c0 d0": colour and dash pattern. Both repeat, with
/// different periods.
[[nodiscard]] std::string style_class(std::size_t style);
/// CSS of everything inside an SVG picture, light and dark.
[[nodiscard]] std::string picture_css();
/// Class of a phase's colour, e.g. "p3"; other phases than the known ones share one.
[[nodiscard]] std::string phase_class(const std::string& phase);
/// CSS of the colours of phases, light and dark.
[[nodiscard]] std::string phase_css();
/// A short piece of line in the style of a group, as a whole SVG picture.
[[nodiscard]] std::string swatch(std::size_t style);

}  // namespace dkfac::app
