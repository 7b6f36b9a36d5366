#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "app/shared/phases.h"

namespace dkfac::app {

/// Returns whether `path` is one of phase_keys().
[[nodiscard]] bool may_change(std::string_view path);
[[nodiscard]] std::int64_t sum_of_epochs(const std::vector<PhaseChanges>& phases);
/// Returns a suffix for messages about one of several phases: " (phase 2, epochs 14 to 28)".
[[nodiscard]] std::string phase_text(const std::vector<Phase>& phases, std::size_t i);
/// Formats all [[phase]] tables, each preceded by a line feed.
[[nodiscard]] std::string phases_to_toml(const Config& config, Comments comments);

}  // namespace dkfac::app
