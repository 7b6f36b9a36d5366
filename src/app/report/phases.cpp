#include <algorithm>
#include <map>

#include <fmt/core.h>

#include "app/report/format.h"
#include "app/report/palette.h"
#include "app/report/sections.h"

namespace dkfac::app {
namespace {

constexpr const char* kNotTraining = "evaluation";
constexpr double kRoomForText = 9;  ///< As percentage of the widest bar.

StepPhases phases_of(const RunGroup& group) {
  std::map<std::string, double> seconds;
  double runs = 0;
  for (const RunResult& run : group.runs) {
    if (run.steps <= 0 || run.phase_seconds.empty()) continue;
    ++runs;
    for (const auto& [phase, value] : run.phase_seconds)
      if (phase != kNotTraining && value > 0)
        seconds[phase] += value / static_cast<double>(run.steps);
  }
  StepPhases out{.name = group.name, .phases = {seconds.begin(), seconds.end()}, .total = 0};
  std::ranges::stable_sort(out.phases, {}, [](const auto& p) { return phase_number(p.first); });
  for (auto& [phase, value] : out.phases) {
    value /= runs;
    out.total += value;
  }
  return out;
}

std::string bar(const StepPhases& step, double longest) {
  std::string out = "<div class=\"bar\">";
  for (const auto& [phase, seconds] : step.phases) {
    const double width = 100 * seconds / longest;
    const std::string text = three_digits(1e3 * seconds);
    out += fmt::format(
        "<span class=\"p{}\" style=\"width:{:.3f}%\" title=\"{}: {} ms, {:.1f} % of the step\">{}"
        "</span>",
        phase_number(phase), width, escape(phase), text, 100 * seconds / step.total,
        width > kRoomForText ? "<b>" + text + "</b>" : "");
  }
  return out + "</div>";
}

}  // namespace

std::vector<StepPhases> step_phases(std::span<const RunGroup> groups) {
  std::vector<StepPhases> out;
  for (const RunGroup& group : groups) out.push_back(phases_of(group));
  return out;
}

std::string phase_bars(std::span<const RunGroup> groups) {
  const std::vector<StepPhases> steps = step_phases(groups);
  double longest = 0;
  std::vector<std::string> seen;
  for (const StepPhases& step : steps) {
    longest = std::max(longest, step.total);
    for (const auto& [phase, seconds] : step.phases)
      if (std::ranges::find(seen, phase) == seen.end()) seen.push_back(phase);
  }
  if (!(longest > 0)) return {};
  std::ranges::stable_sort(seen, {}, phase_number);
  std::string out = "<div class=\"bars\">\n";
  for (std::size_t i = 0; i < steps.size(); ++i)
    out += fmt::format("<div class=\"name\">{}{}</div>{}<div class=\"sum\">{}</div>\n", swatch(i),
                       escape(steps[i].name), bar(steps[i], longest),
                       steps[i].total > 0 ? three_digits(1e3 * steps[i].total) + " ms" : "-");
  out += "</div>\n<p class=\"legend\">";
  for (const std::string& phase : seen)
    out +=
        fmt::format("<span><i class=\"p{}\"></i>{}</span>\n", phase_number(phase), escape(phase));
  return out + "</p>\n";
}

}  // namespace dkfac::app
