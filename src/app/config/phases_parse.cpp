#include "app/config/phases_parse.h"

#include <charconv>

#include <fmt/core.h>

#include "app/config/phases.h"
#include "app/config/table.h"

namespace dkfac::app {

namespace {

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

}  // namespace

std::vector<PhaseSettings> collect_phases(const toml::node& node, std::string_view source) {
  const toml::array* list = node.as_array();
  if (list == nullptr || list->empty())
    refuse(setting_of(node, source), "'phase' is no section; begin each phase with [[phase]]");
  std::vector<PhaseSettings> phases;
  for (const toml::node& one : *list) phases.push_back(collect_one(one, source));
  return phases;
}

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

}  // namespace dkfac::app
