#include <algorithm>
#include <map>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "dkfac/core/error.h"

#include "app/config/phases_parse.h"
#include "app/config/settings.h"

namespace dkfac::app {

namespace {

constexpr std::string_view kPhase = "phase";

/// All settings of the file and the command line.
struct Written {
  Settings sections;
  std::vector<PhaseSettings> phases;
};

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
      refuse(here, fmt::format("'{}' is outside of a section; {}", shortened(section),
                               unknown_key_hint(section)));
    collect_section(section, *table, source, written.sections);
  }
}

void collect_override(const std::string& text, Written& written) {
  auto [path, raw] = split_override(text);
  Setting setting = override_setting(text, std::move(raw));
  if (path.starts_with(kPhase) && path.find('.') == kPhase.size())
    collect_phase(path, std::move(setting), written.phases);
  else
    written.sections[path] = std::move(setting);
}

void refuse_unknown(const Settings& settings) {
  for (const auto& [path, setting] : settings)
    if (find_key(path) == nullptr)
      refuse(setting, fmt::format("unknown key '{}'; {}", shortened(path), unknown_key_hint(path)));
}

/// The setting of --set that chose what `key` depends on, where it excludes the key; a section's or
/// phase's own choice comes before that of the whole. Other models and optimizers are other runs:
/// their keys are refused, not dropped.
const Setting* excluding(const Key& key, const Settings& own, const Settings& whole) {
  const std::string& selector = key.only.selector;
  if (selector.empty() || selector == "model.name" || selector == "optimizer.type") return nullptr;
  auto chosen = own.find(selector);
  if (chosen == own.end()) chosen = whole.find(selector);
  if (chosen == whole.end() || !chosen->second.raw) return nullptr;
  return fulfils(key.only, to_value(*find_key(selector), chosen->second)) ? nullptr
                                                                          : &chosen->second;
}

/// Drops the file's keys that do not apply to what --set chooses, and returns remarks.
std::vector<std::string> drop_excluded(Written& written, std::string_view source) {
  std::map<std::string, std::vector<std::string>> dropped;  // By --set.
  const auto drop = [&](const std::string& head, Settings& settings) {
    std::erase_if(settings, [&](const auto& item) {
      const Key* key = item.second.raw ? nullptr : find_key(item.first);
      const Setting* by = key == nullptr ? nullptr : excluding(*key, settings, written.sections);
      if (by != nullptr) dropped[by->where].push_back(head + item.first);
      return by != nullptr;
    });
  };
  drop("", written.sections);
  for (std::size_t i = 0; i < written.phases.size(); ++i)
    drop(fmt::format("phase.{}.", i + 1), written.phases[i].settings);
  std::vector<std::string> remarks;
  for (const auto& [where, keys] : dropped)
    remarks.push_back(fmt::format("[config] {}: keys of {} that no longer apply are ignored: {}",
                                  where, source, fmt::join(keys, ", ")));
  return remarks;
}

// Applies settings in table order, so that a selector is set before the keys that depend on it.
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
  std::vector<std::string> remarks = drop_excluded(written, source);
  Config config = apply(written.sections);
  config.remarks = std::move(remarks);
  const auto epochs = written.sections.find("run.epochs");
  apply_phases(written.phases, epochs == written.sections.end() ? nullptr : &epochs->second,
               config);
  validate(config);
  return config;
}

Config load_config(const std::filesystem::path& file, std::span<const std::string> overrides) {
  Config config = parse_config(read_toml_text(file), overrides, file.string());
  if (config.run.name.empty())
    (void)apply(*find_key("run.name"), {file.string(), nullptr, file.stem().string()}, config);
  return config;
}

}  // namespace dkfac::app
