#include <algorithm>
#include <array>

#include <fmt/core.h>

#include "app/report/format.h"
#include "app/report/palette.h"
#include "app/report/plot.h"
#include "app/report/sections.h"
#include "app/report/svg.h"

namespace dkfac::app {
namespace {

using Intervals = CurvatureResult::Intervals;

bool is_adaptive(const RunResult& run) { return !run.curvature.intervals.empty(); }

const RunResult* first_adaptive(const RunGroup& group) {
  const auto at = std::ranges::find_if(group.runs, is_adaptive);
  return at == group.runs.end() ? nullptr : &*at;
}

struct Kind {
  const char* name;
  double Intervals::*value;
};
constexpr std::array<Kind, 3> kKinds{
    {{"A", &Intervals::a}, {"G", &Intervals::g}, {"BatchNorm", &Intervals::batch_norm}}};

Curve curve_of(const RunResult& run, const Kind& kind, std::size_t style) {
  Curve curve{.name = kind.name, .style = style, .segments = {{}}};
  for (const Intervals& at : run.curvature.intervals) {
    const double value = at.*kind.value;
    if (value > 0)
      curve.segments[0].push_back({.x = static_cast<double>(at.step),
                                   .mean = value,
                                   .low = value,
                                   .high = value,
                                   .runs = 1,
                                   .epoch = at.step});
  }
  return curve;
}

std::string picture(const RunResult& run, const std::string& id) {
  Plot plot;
  plot.title = "Steps between two refreshes, mean over layers";
  plot.x_label = "steps";
  plot.measure = Measure::interval;
  double highest = 1;
  for (std::size_t i = 0; i < kKinds.size(); ++i) {
    Curve curve = curve_of(run, kKinds.at(i), i);
    if (curve.segments[0].empty()) continue;
    for (const Point& p : curve.segments[0]) highest = std::max(highest, p.mean);
    plot.curves.push_back(std::move(curve));
  }
  const auto last = static_cast<double>(run.curvature.intervals.back().step);
  plot.x = linear_axis(0, std::max(1.0, last), 7, Ends::keep, TickValues::whole);
  plot.y = highest > 10 ? log_axis(1, highest) : linear_axis(0, highest, 6, Ends::round);
  return inline_svg(plot, id);
}

std::string row(const RunGroup& group, std::size_t style) {
  std::vector<double> a, g, bytes, flops;
  for (const RunResult& run : group.runs) {
    if (!is_adaptive(run)) continue;
    const CurvatureResult& c = run.curvature;
    a.push_back(c.a_kept());
    g.push_back(c.g_kept());
    bytes.push_back(c.bytes_saved());
    flops.push_back(c.flops_saved());
  }
  std::string out =
      fmt::format("<tr><th scope=\"row\">{}{}</th>", swatch(style), escape(group.name));
  for (const auto& values : {a, g, bytes, flops})
    out += "<td>" + escape(percent_text(spread_of(values), Dash::en)) + "</td>";
  return out + "</tr>\n";
}

}  // namespace

std::string staleness_section(std::span<const RunGroup> groups) {
  std::string rows, figures;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const RunResult* run = first_adaptive(groups[i]);
    if (run == nullptr) continue;
    rows += row(groups[i], i);
    figures += fmt::format("<figure><figcaption>{}, seed {}</figcaption>{}</figure>\n",
                           escape(groups[i].name), run->seed,
                           picture(*run, fmt::format("intervals{}", i)));
  }
  if (rows.empty()) return {};
  std::string legend = "<p class=\"legend\">";
  for (std::size_t k = 0; k < kKinds.size(); ++k)
    legend += fmt::format("<span>{}{}</span>\n", swatch(k), kKinds.at(k).name);
  return "<div class=\"wide\"><table><thead><tr><th scope=\"col\">configuration</th><th "
         "scope=\"col\">A renewed, %</th><th scope=\"col\">G and BatchNorm renewed, %</th><th "
         "scope=\"col\">bytes saved, %</th><th scope=\"col\">operations saved, "
         "%</th></tr></thead>\n"
         "<tbody>\n" +
         rows +
         "</tbody></table></div>\n<p class=\"note\">Renewed: share of the statistics' elements, "
         "all of "
         "them at every step being 100 %. Bytes saved: of all that is handed to collectives, "
         "gradients "
         "and weights included. Operations saved: of those that build and invert "
         "statistics.</p>\n" +
         legend + "</p>\n<div class=\"plots\">\n" + figures + "</div>\n";
}

}  // namespace dkfac::app
