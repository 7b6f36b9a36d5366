#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>

#include <fmt/core.h>

#include "app/config/keys.h"
#include "app/report/format.h"
#include "app/report/palette.h"
#include "app/report/plot.h"
#include "app/report/svg.h"
#include "app/shared/report.h"
#include "app/sweep/table.h"

namespace dkfac::app {

namespace {

constexpr std::size_t kMostCurves = 6;  // More cannot be told apart.
constexpr double kMargin = 16, kGap = 28, kRow = 20;

std::vector<RunGroup> best_groups(const SweepState& state) {
  std::vector<RunGroup> out;
  for (const std::size_t i : ranking(state)) {
    const SweepRun& run = state.runs[i];
    if (out.size() < kMostCurves && run.status != "failed" && !run.result.epochs.empty())
      out.push_back(
          {fmt::format("{}: {}", run.point.name, label_of(run.point.settings)), {run.result}});
  }
  return out;
}

std::optional<double> plotted_number(const std::string& text) {
  char* end = nullptr;
  const double x = std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0' && std::isfinite(x) ? std::optional(x) : std::nullopt;
}

/// Points of the runs that were judged last after so many epochs.
struct Dots {
  std::map<std::int64_t, std::vector<Point>> by_epochs;
  double low = 0, high = 0;
  bool positive = true, any = false;
};

Dots dots_of(const SweepState& state, const std::string& key) {
  Dots dots;
  for (const SweepRun& run : state.runs) {
    const auto at = run.point.settings.find(key);
    if (at == run.point.settings.end() || !std::isfinite(last_score(run))) continue;
    const std::optional<double> x = plotted_number(at->second);
    if (!x) continue;
    dots.low = dots.any ? std::min(dots.low, *x) : *x;
    dots.high = dots.any ? std::max(dots.high, *x) : *x;
    dots.positive = dots.positive && *x > 0;
    dots.any = true;
    const std::int64_t epochs = run.scores.rbegin()->first;
    const double y = last_score(run);
    dots.by_epochs[epochs].push_back({.x = *x,
                                      .mean = y,
                                      .low = y,
                                      .high = y,
                                      .runs = 1,
                                      .epoch = epochs,
                                      .seconds = run.result.train_seconds});
  }
  return dots;
}

/// Of accuracies, from the worst to the best: here the poor ones matter as well.
Axis whole_axis(const std::vector<Curve>& curves) {
  double low = 1, high = 0;
  for (const Curve& curve : curves)
    for (const Point& point : curve.points()) {
      low = std::min(low, point.mean);
      high = std::max(high, point.mean);
    }
  const double room = std::max(0.05 * (high - low), 0.005);
  return linear_axis_scaled(std::max(0.0, low - room), std::min(1.0, high + room), 6, Ends::keep,
                            100);
}

/// The score against one key: a dot for each run, in the style of the epochs it got.
std::optional<Plot> scatter(const SweepState& state, const std::string& key) {
  const Dots dots = dots_of(state, key);
  if (!dots.any) return std::nullopt;
  Plot plot;
  const bool accuracy = state.spec.metric == Metric::test_accuracy;
  plot.measure = accuracy ? Measure::test_accuracy : Measure::train_loss;
  for (const auto& [epochs, points] : dots.by_epochs) {
    Curve curve{.name = key, .style = plot.curves.size(), .segments = {}};
    for (const Point& point : points) curve.segments.push_back({point});  // Alone: no line.
    plot.curves.push_back(std::move(curve));
  }
  const double factor = 1.15;  // Room beside the outermost dots.
  if (dots.positive && dots.high >= 8 * dots.low) {
    plot.x = log_axis(dots.low / factor, dots.high * factor);
  } else {
    const double room = 0.05 * std::max(dots.high - dots.low, 0.1 * std::abs(dots.high));
    plot.x = linear_axis(dots.low - room, dots.high + room, 6, Ends::keep);
  }
  plot.y = accuracy ? whole_axis(plot.curves) : loss_axis(plot.curves);
  plot.title =
      accuracy ? "Score: test accuracy, %" : fmt::format("Score: {}", name_of(state.spec.metric));
  plot.x_label = key;
  return plot;
}

std::string legend_line(std::size_t style, const std::string& text, double x, double y) {
  return fmt::format(
      "<g class=\"{}\" transform=\"translate({:.1f} {:.1f})\"><path class=\"line dash\" d=\"M0 "
      "-4H34\"/><circle class=\"fill dot\" cx=\"17\" cy=\"-4\" r=\"3\"/><text class=\"ink\" "
      "x=\"40\" y=\"0\">{}</text></g>\n",
      style_class(style), x, y, escape(text));
}

/// Lines under a picture that say what its styles stand for.
std::string legend(const std::vector<std::string>& texts, double x, double y) {
  std::string out;
  for (std::size_t i = 0; i < texts.size(); ++i)
    out += legend_line(i, texts[i], x + 48, y + kRow * static_cast<double>(i + 1));
  return out;
}

struct Panel {
  Plot plot;
  std::vector<std::string> names;
};

}  // namespace

std::string picture_of(const SweepState& state) {
  std::vector<Panel> panels;
  const std::vector<RunGroup> groups = best_groups(state);
  const bool accuracy = state.spec.metric != Metric::train_loss;
  Panel first{make_plot(groups, summarize(groups, std::nullopt),
                        accuracy ? Measure::test_accuracy : Measure::train_loss, Against::epochs),
              {}};
  first.plot.title += ", of the best runs";
  for (const RunGroup& group : groups) first.names.push_back(group.name);
  panels.push_back(std::move(first));
  for (const std::string& key : keys_of(state)) {
    std::optional<Plot> plot = scatter(state, key);
    if (!plot) continue;
    Panel panel{std::move(*plot), {}};
    for (const auto& [epochs, points] : dots_of(state, key).by_epochs)
      panel.names.push_back(fmt::format("judged after {} epoch{}", epochs, epochs == 1 ? "" : "s"));
    panels.push_back(std::move(panel));
  }
  std::size_t lines = 0;
  for (const Panel& panel : panels) lines = std::max(lines, panel.names.size());
  const double cell = kPlotHeight + kRow * static_cast<double>(lines) + kGap;
  const double rows = std::ceil(static_cast<double>(panels.size()) / 2);
  const double width = 2 * kPlotWidth + kGap + 2 * kMargin, height = rows * cell + 2 * kMargin;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"pic\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "width=\"{0:.0f}\" height=\"{1:.0f}\" role=\"img\" aria-label=\"Scores of the runs of a "
      "sweep\">\n<style>\n{2}</style>\n<rect class=\"paper\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\"/>\n",
      width, height, picture_css());
  for (std::size_t i = 0; i < panels.size(); ++i) {
    const double x = kMargin + (i % 2 == 0 ? 0 : kPlotWidth + kGap);
    const double y = kMargin + cell * static_cast<double>(i / 2);
    out += fmt::format("<g transform=\"translate({:.0f} {:.0f})\">\n{}{}</g>\n", x, y,
                       draw(panels[i].plot, fmt::format("panel-{}", i)),
                       legend(panels[i].names, 0, kPlotHeight));
  }
  return out + "</svg>\n";
}

}  // namespace dkfac::app
