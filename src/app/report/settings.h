#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/shared/result.h"

namespace dkfac::app {

/// Parses "section.key" -> value from TOML as the program writes it, one key to a line.
[[nodiscard]] std::map<std::string, std::string> settings_of(const std::string& toml);

/// Returns the configuration of one run, as the runs of a group differ only in the seed; empty
/// where none has it.
[[nodiscard]] std::string configuration_of(const RunGroup& group);

/// Returns the settings in which the groups differ, without name and seed: key -> the value of each
/// group, unset where its configuration lacks the key.
[[nodiscard]] std::map<std::string, std::vector<std::optional<std::string>>> differing_settings(
    std::span<const RunGroup> groups);

}  // namespace dkfac::app
