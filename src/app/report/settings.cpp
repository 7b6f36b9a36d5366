#include <set>
#include <string_view>

#include <fmt/core.h>

#include "app/report/format.h"
#include "app/report/sections.h"

namespace dkfac::app {
namespace {

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

/// The runs of a group differ in the seed alone, so one of them stands for all.
std::string configuration_of(const RunGroup& group) {
  for (const RunResult& run : group.runs) {
    if (!run.configuration.empty()) return run.configuration;
  }
  return {};
}

/// Differ by their nature and say nothing.
bool is_label(const std::string& key) { return key == "run.name" || key == "run.seed"; }

std::string differences(std::span<const RunGroup> groups) {
  std::vector<std::map<std::string, std::string>> all;
  std::set<std::string> keys;
  for (const RunGroup& group : groups) {
    all.push_back(settings_of(configuration_of(group)));
    for (const auto& [key, value] : all.back()) keys.insert(key);
  }
  std::string rows;
  for (const std::string& key : keys) {
    std::set<std::string> values;
    std::string cells;
    for (const auto& settings : all) {
      const auto found = settings.find(key);
      const std::string value = found == settings.end() ? "\u2013" : found->second;
      values.insert(value);
      cells += "<td><code>" + escape(value) + "</code></td>";
    }
    if (values.size() > 1 && !is_label(key)) {
      rows +=
          fmt::format("<tr><th scope=\"row\"><code>{}</code></th>{}</tr>\n", escape(key), cells);
    }
  }
  if (rows.empty()) return {};
  std::string heads;
  for (const RunGroup& group : groups) {
    heads += fmt::format("<th scope=\"col\">{}</th>", escape(group.name));
  }
  return fmt::format(
      "<div class=\"wide\"><table class=\"settings\"><thead><tr><th "
      "scope=\"col\">setting</th>{}</tr>"
      "</thead>\n<tbody>\n{}</tbody></table></div>\n",
      heads, rows);
}

}  // namespace

std::map<std::string, std::string> settings_of(const std::string& toml) {
  std::map<std::string, std::string> out;
  std::string section;
  int phases = 0;
  std::string_view rest = toml;
  while (!rest.empty()) {
    const auto end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = trimmed(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.empty() || line.front() == '#') continue;
    if (line == "[[phase]]") {
      section = fmt::format("phase.{}.", ++phases);
      continue;
    }
    if (line.front() == '[' && line.back() == ']') {
      section = std::string(trimmed(line.substr(1, line.size() - 2))) + ".";
      continue;
    }
    const auto equals = line.find('=');
    if (equals == std::string_view::npos) continue;
    out[section + std::string(trimmed(line.substr(0, equals)))] = trimmed(line.substr(equals + 1));
  }
  return out;
}

std::string settings_section(std::span<const RunGroup> groups) {
  std::string out;
  if (groups.size() > 1) out += differences(groups);
  for (const RunGroup& group : groups) {
    const std::string configuration = configuration_of(group);
    if (configuration.empty()) continue;
    out += fmt::format(
        "<details><summary>Effective configuration of {}</summary><pre>{}</pre></details>\n",
        escape(group.name), escape(configuration));
  }
  return out;
}

}  // namespace dkfac::app
