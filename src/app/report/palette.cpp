#include "app/report/palette.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/core.h>

namespace dkfac::app {
namespace {

struct Colour {
  std::string_view light, dark;
};
// Okabe and Ito's colours, which the common kinds of colour blindness leave distinct; the dark
// column is the same hues, lightened. Yellow is left out: it does not show on white.
constexpr std::array<Colour, 7> kColours{{{"#0072b2", "#4ea8e6"},
                                          {"#d55e00", "#ff8a45"},
                                          {"#009e73", "#2fc79c"},
                                          {"#b5578f", "#e79cc8"},
                                          {"#c98a00", "#f2bd4a"},
                                          {"#3d9bd0", "#a5d8f7"},
                                          {"#444444", "#d6d6d6"}}};
constexpr std::array<std::string_view, 6> kDashes{"none",    "7 3",  "2 2.5",
                                                  "9 3 2 3", "13 4", "5 2 1.5 2 1.5 2"};

struct Phase {
  std::string_view name;
  Colour colour;
};
// What every optimizer does is grey and blue, what second order adds is warm.
constexpr std::array<Phase, 9> kPhases{{{"data", {"#b8bcc2", "#6a7078"}},
                                        {"forward", {"#8cc8ee", "#3f86b8"}},
                                        {"backward", {"#0072b2", "#63b3e8"}},
                                        {"passes", {"#3d7fa8", "#5a9cc6"}},
                                        {"statistics", {"#e69f00", "#e8b23f"}},
                                        {"exchange", {"#009e73", "#2fb98f"}},
                                        {"inverse", {"#d55e00", "#f0803c"}},
                                        {"update", {"#cc79a7", "#d693b8"}},
                                        {"", {"#666666", "#a0a0a0"}}}};

std::string colour_rules(bool dark) {
  std::string out;
  for (std::size_t i = 0; i < kColours.size(); ++i) {
    const std::string_view colour = dark ? kColours[i].dark : kColours[i].light;
    out += fmt::format(".c{0} .line{{stroke:{1}}}.c{0} .fill{{fill:{1}}}\n", i, colour);
  }
  return out;
}

std::string phase_rules(bool dark) {
  std::string out;
  for (std::size_t i = 0; i < kPhases.size(); ++i) {
    out += fmt::format(".p{}{{background:{}}}\n", i,
                       dark ? kPhases[i].colour.dark : kPhases[i].colour.light);
  }
  return out;
}

constexpr std::string_view kPicture = R"(.pic text{font:12px system-ui,-apple-system,"Segoe UI",)"
                                      R"(Roboto,"DejaVu Sans",Helvetica,Arial,sans-serif;)"
                                      R"(font-variant-numeric:tabular-nums}
.pic .title{font-size:14px;font-weight:600}
.pic .line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:butt}
.pic .band{opacity:.17;stroke:none}
.pic .dot{stroke:none}
.pic .hover{opacity:0}
.pic .whisker{stroke-width:1.5;stroke-dasharray:none}
.pic .drop{stroke-width:1.2;stroke-dasharray:2 3;opacity:.8}
.pic .grid{stroke-width:1;shape-rendering:crispEdges}
.pic .axis{stroke-width:1;shape-rendering:crispEdges}
.pic .goal{stroke-width:1.4;stroke-dasharray:5 4}
.pic .flag{stroke-width:1.6}
)";

std::string ink_rules(std::string_view ink, std::string_view soft, std::string_view grid,
                      std::string_view paper) {
  return fmt::format(
      ".pic .ink{{fill:{0}}}.pic .soft{{fill:{1}}}.pic .grid{{stroke:{2}}}.pic .axis{{stroke:{1}}}"
      ".pic .goal{{stroke:{0}}}.pic .flag{{stroke:{3}}}.pic .paper{{fill:{3}}}\n",
      ink, soft, grid, paper);
}

constexpr std::string_view kDarkOnly = "@media screen and (prefers-color-scheme:dark){\n";

}  // namespace

std::string style_class(std::size_t style) {
  return fmt::format("c{} d{}", style % kColours.size(), style % kDashes.size());
}

std::string picture_css() {
  std::string out(kPicture);
  for (std::size_t i = 0; i < kDashes.size(); ++i) {
    out += fmt::format(".d{} .dash{{stroke-dasharray:{}}}\n", i, kDashes[i]);
  }
  out += ink_rules("#1c2024", "#5b636d", "#e6e8eb", "#ffffff") + colour_rules(false);
  out += kDarkOnly;
  out += ink_rules("#eceef1", "#a3abb5", "#333941", "#16191d") + colour_rules(true) + "}\n";
  return out;
}

std::string phase_class(const std::string& phase) {
  const auto at = std::ranges::find(kPhases, std::string_view(phase), &Phase::name);
  const auto index = at == kPhases.end() ? std::ssize(kPhases) - 1 : at - kPhases.begin();
  return fmt::format("p{}", index);
}

std::string phase_css() {
  return phase_rules(false) + std::string(kDarkOnly) + phase_rules(true) + "}\n";
}

std::string swatch(std::size_t style) {
  return fmt::format(
      R"(<svg class="pic swatch" viewBox="0 0 34 12" width="34" height="12" aria-hidden="true">)"
      R"(<g class="{}"><path class="line dash" d="M0 6H34"/><circle class="fill dot" cx="17" )"
      R"(cy="6" r="3"/></g></svg>)",
      style_class(style));
}

}  // namespace dkfac::app
