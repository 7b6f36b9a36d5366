#include <algorithm>
#include <charconv>
#include <map>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "dkfac/core/error.h"

#include "app/config/phases.h"
#include "app/config/settings.h"
#include "app/config/table.h"

namespace dkfac::app {

namespace {

/// A [[phase]] as written by the user; its number of epochs is the setting "epochs".
struct PhaseSettings {
  std::string where;
  Settings settings;
};

constexpr const char* kEpochs = "epochs";

/// Describes "epochs" as a key, so that its messages have the form of those about keys.
const Key& epochs_key() {
  static const Key key{.path = kEpochs,
                       .type = KeyType::integer,
                       .range = between(1, kMaxCount),
                       .help = "of this phase"};
  return key;
}

void refuse_key(const Setting& setting, const std::string& path) {
  if (path == kEpochs || may_change(path)) return;
  if (find_key(path) == nullptr)
    refuse(setting,
           fmt::format("unknown key '{}' of a phase; {}", shortened(path), unknown_key_hint(path)));
  const std::string section = path.substr(0, path.find('.'));
  refuse(setting,
         fmt::format("{} cannot change from phase to phase; set it in [{}], for the whole run "
                     "('dkfac info config' lists the keys that can)",
                     path, section));
}

PhaseSettings collect_one(const toml::node& node, std::string_view source) {
  PhaseSettings phase{place(source, node.source()), {}};
  const toml::table* table = node.as_table();
  if (table == nullptr)
    refuse(setting_of(node, source), "'phase' is no section; begin each phase with [[phase]]");
  for (const auto& [name, inner] : *table) {
    const std::string key(name.str());
    if (const toml::table* section = inner.as_table())
      collect_section(key, *section, source, phase.settings);
    else
      add_setting(key, setting_of(inner, source), phase.settings);
  }
  return phase;
}

std::int64_t epochs_of(const PhaseSettings& phase, std::size_t number) {
  const auto at = phase.settings.find(kEpochs);
  if (at == phase.settings.end())
    refuse({phase.where, nullptr, {}},
           fmt::format("phase {} has no epochs; add e.g. epochs = 10", number));
  return std::get<std::int64_t>(to_value(epochs_key(), at->second));
}

PhaseChanges changes_of(const PhaseSettings& phase, std::size_t number, Config sections) {
  for (const auto& [path, setting] : phase.settings) refuse_key(setting, path);
  PhaseChanges changes{epochs_of(phase, number), {}};
  for (const Key& key : config_keys())
    if (const auto at = phase.settings.find(key.path); at != phase.settings.end())
      changes.changes.emplace_back(key.path, to_toml(apply(key, at->second, sections)));
  return changes;
}

/// Collects the phases of a file from `node`, its value of the name "phase".
std::vector<PhaseSettings> collect_phases(const toml::node& node, std::string_view source) {
  const toml::array* list = node.as_array();
  if (list == nullptr || list->empty())
    refuse(setting_of(node, source), "'phase' is no section; begin each phase with [[phase]]");
  std::vector<PhaseSettings> phases;
  for (const toml::node& one : *list) phases.push_back(collect_one(one, source));
  return phases;
}

/// Adds a setting of the command line with the path "phase.N.key".
void collect_phase(const std::string& path, Setting setting, std::vector<PhaseSettings>& phases) {
  const std::size_t begin = path.find('.') + 1, dot = path.find('.', begin);
  std::size_t number = 0;
  const char* end = path.data() + std::min(dot, path.size());
  const auto [at, error] = std::from_chars(path.data() + begin, end, number);
  if (dot == std::string::npos || error != std::errc() || at != end)
    refuse(setting, "phases have numbers from 1 on; write e.g. phase.2.data.image_size=96");
  if (number < 1 || number > phases.size())
    refuse(setting, fmt::format("there is no phase {}: the file has {}; add [[phase]] to it, or "
                                "use another number",
                                number, phases.size()));
  phases[number - 1].settings[path.substr(dot + 1)] = std::move(setting);
}

/// Applies the phases to a configuration whose sections are already set. `epochs`: the user's
/// setting of run.epochs, or null.
void apply_phases(const std::vector<PhaseSettings>& phases, const Setting* epochs, Config& config) {
  if (phases.empty()) return;
  std::vector<PhaseChanges> all;
  for (const PhaseSettings& phase : phases)
    all.push_back(changes_of(phase, all.size() + 1, config));
  const std::int64_t sum = sum_of_epochs(all);
  if (epochs != nullptr && config.run.epochs != sum)
    refuse(*epochs, fmt::format("run.epochs = {}, and the {} phases have {} epochs together; leave "
                                "run.epochs out, or change the epochs of a phase",
                                config.run.epochs, all.size(), sum));
  if (!find_key("run.epochs")->range.contains(static_cast<double>(sum)))
    throw InvalidArgument(
        fmt::format("[config] {}: the phases have {} epochs together; at most "
                    "{:.0f} are possible, so lower those of a phase",
                    phases.front().where, sum, kMaxCount));
  config.run.epochs = sum;
  config.phases = std::move(all);
}

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
