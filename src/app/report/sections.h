#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "app/shared/report.h"

/// Parts of the HTML page, each a whole element or nothing.
namespace dkfac::app {

/// Mean seconds of one step by phase, training only, over the runs that made steps; in the order in
/// which a step has them.
struct StepPhases {
  std::string name;
  std::vector<std::pair<std::string, double>> phases;
  double total = 0;
};
[[nodiscard]] std::vector<StepPhases> step_phases(std::span<const RunGroup> groups);
/// One stacked bar for each group, all to one scale, and the legend.
[[nodiscard]] std::string phase_bars(std::span<const RunGroup> groups);

/// How the loading of photographs kept up, and which were damaged. Nothing without photographs.
[[nodiscard]] std::string loading_section(std::span<const RunGroup> groups);

/// "section.key" -> value, of TOML as the program writes it: one key to a line.
[[nodiscard]] std::map<std::string, std::string> settings_of(const std::string& toml);
/// A table of the settings in which the groups differ, and each effective configuration, folded.
[[nodiscard]] std::string settings_section(std::span<const RunGroup> groups);

/// Of the groups under the adaptive rule: what they renewed, and how their intervals grew. Nothing
/// where there is none.
[[nodiscard]] std::string staleness_section(std::span<const RunGroup> groups);

}  // namespace dkfac::app
