#include <algorithm>
#include <fstream>
#include <sstream>

#include <fmt/core.h>

#include "dkfac/core/error.h"

#include "app/config_phases_parse.h"
#include "app/config_settings.h"

namespace dkfac::app {

namespace {

constexpr std::string_view kPhase = "phase";

/// All that was written, the command line included.
struct Written {
  Settings sections;
  std::vector<PhaseSettings> phases;
};

bool is_section(std::string_view name) {
  return std::any_of(config_keys().begin(), config_keys().end(), [&](const Key& key) {
    return key.path.substr(0, key.path.find('.')) == name;
  });
}

void collect(const toml::table& root, std::string_view source, Written& written) {
  for (const auto& [name, node] : root) {
    const std::string section(name.str());
    if (section == kPhase) {
      written.phases = collect_phases(node, source);
      continue;
    }
    const toml::table* table = node.as_table();
    const Setting here{place(source, node.source()), nullptr, {}};
    if (table == nullptr)
      refuse(here, fmt::format("'{}' stands outside of a section; {}", section,
                               unknown_key_hint(section)));
    if (!is_section(section) && table->empty())
      refuse(here, fmt::format("unknown section [{}]; 'dkfac info config' lists all", section));
    collect_section(section, *table, source, written.sections);
  }
}

toml::table parse_toml(std::string_view text, std::string_view source) {
  try {
    return toml::parse(text, source);
  } catch (const toml::parse_error& error) {
    throw InvalidArgument(fmt::format("[config] {}: {}; correct the TOML there",
                                      place(source, error.source()), error.description()));
  }
}

void collect_override(const std::string& text, Written& written) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    throw InvalidArgument(
        fmt::format("[config] --set {}: no 'key=value'; e.g. --set optimizer.damping=0.01", text));
  std::string path = text.substr(0, equals);
  path.erase(std::remove(path.begin(), path.end(), ' '), path.end());
  Setting setting = override_setting(text, text.substr(equals + 1));
  if (path.starts_with(kPhase) && path.find('.') == kPhase.size())
    collect_phase(path, std::move(setting), written.phases);
  else
    written.sections[path] = std::move(setting);
}

void refuse_unknown(const Settings& settings) {
  for (const auto& [path, setting] : settings)
    if (find_key(path) == nullptr)
      refuse(setting, fmt::format("unknown key '{}'; {}", path, unknown_key_hint(path)));
}

// In the order of the table, so that a selector is set before the keys that depend on it.
Config apply(const Settings& settings) {
  refuse_unknown(settings);
  Config config;
  for (const Key& key : config_keys())
    if (const auto at = settings.find(key.path); at != settings.end())
      (void)apply(key, at->second, config);
  return config;
}

}  // namespace

Config parse_config(std::string_view text, std::span<const std::string> overrides,
                    std::string_view source) {
  Written written;
  collect(parse_toml(text, source), source, written);
  for (const std::string& override_text : overrides) collect_override(override_text, written);
  Config config = apply(written.sections);
  const auto epochs = written.sections.find("run.epochs");
  apply_phases(written.phases, epochs == written.sections.end() ? nullptr : &epochs->second,
               config);
  validate(config);
  return config;
}

Config load_config(const std::filesystem::path& file, std::span<const std::string> overrides) {
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored))
    throw MissingInput(
        fmt::format("[config] there is no file '{}'; configurations that come with "
                    "dkfac are in its folder configs",
                    file.string()));
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  if (!in || std::filesystem::is_directory(file, ignored) || !(text << in.rdbuf()))
    throw IoError(
        fmt::format("[config] cannot read '{}'; check that it is a readable, non-empty "
                    "file",
                    file.string()));
  Config config = parse_config(text.str(), overrides, file.string());
  if (config.run.name.empty()) config.run.name = file.stem().string();
  return config;
}

}  // namespace dkfac::app
