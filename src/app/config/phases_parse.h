#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "app/config/settings.h"

namespace dkfac::app {

/// A [[phase]] as somebody wrote it; its number of epochs is the setting "epochs".
struct PhaseSettings {
  std::string where;
  Settings settings;
};

/// `node`: what a file has under the name phase.
[[nodiscard]] std::vector<PhaseSettings> collect_phases(const toml::node& node,
                                                        std::string_view source);
/// `path`: "phase.N.key" of the command line.
void collect_phase(const std::string& path, Setting setting, std::vector<PhaseSettings>& phases);
/// Puts them into the configuration that has the sections already. `epochs`: run.epochs as somebody
/// wrote it, or null.
void apply_phases(const std::vector<PhaseSettings>& phases, const Setting* epochs, Config& config);

}  // namespace dkfac::app
