#include <algorithm>
#include <functional>
#include <set>
#include <sstream>
#include <string_view>

#include <fmt/core.h>

#include "app/report/sections.h"
#include "app/report/table.h"

namespace dkfac::app {
namespace {

using SettingTexts = std::map<std::string, std::string>;

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

/// Returns the configuration of one run, as the runs of a group differ only in the seed.
std::string configuration_of(const RunGroup& group) {
  for (const RunResult& run : group.runs)
    if (!run.configuration.empty()) return run.configuration;
  return {};
}

/// Keys that always differ and carry no information.
bool is_label(const std::string& key) { return key == "run.name" || key == "run.seed"; }

std::string differences(std::span<const RunGroup> groups) {
  std::vector<SettingTexts> all;
  std::set<std::string> keys;
  for (const RunGroup& group : groups) {
    all.push_back(settings_of(configuration_of(group)));
    for (const auto& [key, value] : all.back()) keys.insert(key);
  }
  const auto value = [](const SettingTexts& settings, const std::string& key) {
    const auto found = settings.find(key);
    return found == settings.end() ? "\u2013" : found->second;
  };
  std::erase_if(keys, [&](const std::string& key) {
    return is_label(key) || std::ranges::all_of(all, [&](const SettingTexts& settings) {
             return value(settings, key) == value(all.front(), key);
           });
  });
  Table table;
  add_column(table, {"", "setting"}, keys, std::identity());
  for (std::size_t i = 0; i < groups.size(); ++i)
    add_column(table, {"", groups[i].name}, keys,
               [&](const std::string& key) { return value(all[i], key); });
  return html_table(table, Look::code);
}

}  // namespace

SettingTexts settings_of(const std::string& toml) {
  SettingTexts out;
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

std::string settings_section(std::span<const RunGroup> groups) {
  std::string out;
  if (groups.size() > 1) out += differences(groups);
  for (const RunGroup& group : groups)
    if (const std::string configuration = configuration_of(group); !configuration.empty())
      out += fmt::format(
          "<details><summary>Effective configuration of {}</summary><pre>{}</pre></details>\n",
          escape(group.name), escape(configuration));
  return out;
}

}  // namespace dkfac::app
