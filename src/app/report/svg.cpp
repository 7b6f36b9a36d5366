#include "app/report/svg.h"

#include <algorithm>

#include <fmt/core.h>

#include "app/report/format.h"
#include "app/report/palette.h"

namespace dkfac::app {
namespace {

constexpr int kPieces = 7;

Axis x_axis(std::span<const Curve> curves, Against against) {
  double last = 0;
  for (const Curve& curve : curves) {
    for (const Point& p : curve.points()) last = std::max(last, p.x);
  }
  if (last <= 0) last = 1;
  const bool whole = against == Against::epochs;
  return linear_axis(0, last, kPieces, Ends::keep, whole ? TickValues::whole : TickValues::any);
}

std::vector<Mark> marks_of(const Comparison& comparison, Against against) {
  std::vector<Mark> out;
  for (std::size_t i = 0; i < comparison.groups.size(); ++i) {
    const GroupSummary& group = comparison.groups[i];
    if (!group.epochs || !group.seconds) continue;
    const double x = against == Against::epochs ? group.epochs->mean : group.seconds->mean;
    out.push_back({i, x,
                   fmt::format("{} reaches the target after {} epochs, {} s ({} of {} runs)",
                               group.name, epochs_text(*group.epochs, Dash::en),
                               seconds_text(*group.seconds, Dash::en), group.reached, group.runs)});
  }
  return out;
}

/// Names and lines of all groups, in rows as wide as the picture. Returns the height used.
double draw_legend(std::span<const RunGroup> groups, double width, std::string& out) {
  constexpr double kRow = 22, kGlyph = 7.2, kSample = 34, kGap = 26;
  double x = 2, y = 14;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const double wide = kSample + 6 + kGlyph * static_cast<double>(groups[i].name.size());
    if (x > 2 && x + wide > width) {
      x = 2;
      y += kRow;
    }
    out += fmt::format(
        "<g class=\"{}\" transform=\"translate({:.1f} {:.1f})\"><path class=\"line dash\" d=\"M0 "
        "-4H{:.1f}\"/><circle class=\"fill dot\" cx=\"{:.1f}\" cy=\"-4\" r=\"3\"/><text "
        "class=\"ink\" x=\"{:.1f}\" y=\"0\">{}</text></g>\n",
        style_class(i), x, y, kSample, kSample / 2, kSample + 6, escape(groups[i].name));
    x += wide + kGap;
  }
  return y + 14;
}

}  // namespace

Plot make_plot(std::span<const RunGroup> groups, const Comparison& comparison, Measure measure,
               Against against) {
  Plot plot;
  const bool accuracy = measure == Measure::test_accuracy;
  plot.measure = measure;
  plot.curves = curves_of(groups, measure, against);
  plot.x = x_axis(plot.curves, against);
  plot.y = accuracy ? accuracy_axis(plot.curves, comparison.target) : loss_axis(plot.curves);
  plot.x_label = against == Against::epochs ? "epochs" : "seconds of training";
  plot.title = accuracy                     ? "Test accuracy, %"
               : plot.y.scale == Scale::log ? "Training loss (log)"
                                            : "Training loss";
  if (accuracy) {
    plot.target = comparison.target;
    plot.marks = marks_of(comparison, against);
  }
  return plot;
}

std::string inline_svg(const Plot& plot, const std::string& id) {
  return fmt::format(
      "<svg class=\"pic\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{} against "
      "{}\">\n{}</svg>\n",
      kPlotWidth, kPlotHeight, escape(plot.title), escape(plot.x_label), draw(plot, id));
}

std::string svg_curves(std::span<const RunGroup> groups, const Comparison& comparison) {
  constexpr double kMargin = 16, kGap = 28;
  const double width = 2 * kPlotWidth + kGap;
  std::string legend;
  const double top = draw_legend(groups, width, legend);
  const double full_width = width + 2 * kMargin, full_height = top + kPlotHeight + 2 * kMargin;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"pic\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "width=\"{0:.0f}\" height=\"{1:.0f}\" role=\"img\" aria-label=\"Test accuracy against epochs "
      "and against seconds\">\n<style>\n{2}</style>\n<rect class=\"paper\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\"/>\n<g transform=\"translate({3:.0f} {3:.0f})\">\n{4}",
      full_width, full_height, picture_css(), kMargin, legend);
  double left = 0;
  for (const Against against : {Against::epochs, Against::seconds}) {
    const Plot plot = make_plot(groups, comparison, Measure::test_accuracy, against);
    out += fmt::format("<g transform=\"translate({:.0f} {:.0f})\">\n{}</g>\n", left, top,
                       draw(plot, against == Against::epochs ? "by-epochs" : "by-seconds"));
    left += kPlotWidth + kGap;
  }
  return out + "</g>\n</svg>\n";
}

}  // namespace dkfac::app
