#include "app/report/settings.h"

#include <algorithm>
#include <sstream>
#include <string_view>

#include <fmt/core.h>

namespace dkfac::app {
namespace {

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

/// Keys that always differ and carry no information.
bool is_label(const std::string& key) { return key == "run.name" || key == "run.seed"; }

}  // namespace

std::map<std::string, std::string> settings_of(const std::string& toml) {
  std::map<std::string, std::string> out;
  std::string section;
  int phases = 0;
  std::istringstream in(toml);
  for (std::string text; std::getline(in, text);) {
    const std::string_view line = trimmed(text);
    const auto equals = line.find('=');
    if (line == "[[phase]]")
      section = fmt::format("phase.{}.", ++phases);
    else if (line.starts_with('[') && line.ends_with(']'))
      section = fmt::format("{}.", trimmed(line.substr(1, line.size() - 2)));
    else if (!line.starts_with('#') && equals != std::string_view::npos)
      out[fmt::format("{}{}", section, trimmed(line.substr(0, equals)))] =
          trimmed(line.substr(equals + 1));
  }
  return out;
}

std::string configuration_of(const RunGroup& group) {
  for (const RunResult& run : group.runs)
    if (!run.configuration.empty()) return run.configuration;
  return {};
}

std::map<std::string, std::vector<std::optional<std::string>>> differing_settings(
    std::span<const RunGroup> groups) {
  std::map<std::string, std::vector<std::optional<std::string>>> out;
  for (std::size_t i = 0; i < groups.size(); ++i)
    for (const auto& [key, value] : settings_of(configuration_of(groups[i]))) {
      auto& values = out[key];
      values.resize(groups.size());
      values[i] = value;
    }
  std::erase_if(out, [](const auto& setting) {
    const auto& [key, values] = setting;
    return is_label(key) || std::ranges::count(values, values.front()) == std::ssize(values);
  });
  return out;
}

}  // namespace dkfac::app
