#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "app/config/settings.h"

namespace dkfac::app {

/// A [[phase]] as written by the user; its number of epochs is the setting "epochs".
struct PhaseSettings {
  std::string where;
  Settings settings;
};

/// Collects the phases of a file from `node`, its value of the name "phase".
[[nodiscard]] std::vector<PhaseSettings> collect_phases(const toml::node& node,
                                                        std::string_view source);
/// Adds a setting of the command line with the path "phase.N.key".
void collect_phase(const std::string& path, Setting setting, std::vector<PhaseSettings>& phases);
/// Applies the phases to a configuration whose sections are already set. `epochs`: the user's
/// setting of run.epochs, or null.
void apply_phases(const std::vector<PhaseSettings>& phases, const Setting* epochs, Config& config);

}  // namespace dkfac::app
