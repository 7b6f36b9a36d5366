#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include "dkfac/core/error.h"

#include "app/config_keys.h"

namespace dkfac::app {

namespace {

/// One "path = value" as somebody wrote it.
struct Setting {
  std::string where;                 // "lenet.toml:12", "--set a.b=c"
  std::unique_ptr<toml::node> node;  // The value; null when the raw text is no TOML.
  std::optional<std::string> raw;    // Of --set: the text after '='.
};
using Settings = std::map<std::string, Setting>;

[[noreturn]] void refuse(const Setting& setting, const std::string& what) {
  throw InvalidArgument(fmt::format("[config] {}: {}", setting.where, what));
}

std::string shown(const toml::node& node) {
  std::ostringstream out;
  node.visit([&](const auto& value) { out << value; });
  return std::move(out).str();
}

std::string shown(const Setting& setting) {
  return setting.raw ? *setting.raw : shown(*setting.node);
}

[[noreturn]] void refuse_value(const Key& key, const Setting& setting) {
  refuse(setting, fmt::format("{} = {} is not allowed; write {} ({})", key.path, shown(setting),
                              expectation(key), key.help));
}

std::string place(std::string_view source, const toml::source_region& region) {
  return region.begin.line == 0 ? std::string(source)
                                : fmt::format("{}:{}", source, region.begin.line);
}

std::string unknown_key_hint(const std::string& path) {
  const std::string near = nearest_key(path);
  return near.empty() ? "'dkfac info config' lists all keys"
                      : fmt::format("did you mean '{}'? 'dkfac info config' lists all keys", near);
}

bool is_section(std::string_view name) {
  return std::any_of(config_keys().begin(), config_keys().end(), [&](const Key& key) {
    return key.path.substr(0, key.path.find('.')) == name;
  });
}

std::unique_ptr<toml::node> copy_of(const toml::node& node) {
  return node.visit([](const auto& value) -> std::unique_ptr<toml::node> {
    return std::make_unique<std::decay_t<decltype(value)>>(value);
  });
}

void collect_section(const std::string& section, const toml::table& table, std::string_view source,
                     Settings& settings) {
  for (const auto& [name, node] : table) {
    const std::string path = section + '.' + std::string(name.str());
    settings[path] = {place(source, node.source()), copy_of(node), {}};
  }
}

void collect(const toml::table& root, std::string_view source, Settings& settings) {
  for (const auto& [name, node] : root) {
    const std::string section(name.str());
    const toml::table* table = node.as_table();
    const Setting here{place(source, node.source()), nullptr, {}};
    if (table == nullptr)
      refuse(here, fmt::format("'{}' stands outside of a section; {}", section,
                               unknown_key_hint(section)));
    if (!is_section(section) && table->empty())
      refuse(here, fmt::format("unknown section [{}]; 'dkfac info config' lists all", section));
    collect_section(section, *table, source, settings);
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

// The value as TOML; a word that is none (lenet-bn) stays text.
Setting parse_override(const std::string& text, std::size_t equals) {
  Setting setting{"--set " + text, nullptr, text.substr(equals + 1)};
  try {
    const toml::table table = toml::parse("x = " + *setting.raw);
    if (table.size() == 1) setting.node = copy_of(*table.get("x"));
  } catch (const toml::parse_error&) {
    setting.node = nullptr;
  }
  return setting;
}

void collect_override(const std::string& text, Settings& settings) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    throw InvalidArgument(
        fmt::format("[config] --set {}: no 'key=value'; e.g. --set optimizer.damping=0.01", text));
  std::string path = text.substr(0, equals);
  path.erase(std::remove(path.begin(), path.end(), ' '), path.end());
  settings[path] = parse_override(text, equals);
}

std::optional<double> number(const toml::node& node) {
  if (node.is_integer() || node.is_floating_point()) return node.value<double>();
  return std::nullopt;
}

Knots knots_value(const Key& key, const Setting& setting) {
  const toml::array* list = setting.node ? setting.node->as_array() : nullptr;
  if (list == nullptr || list->empty()) refuse_value(key, setting);
  Knots knots;
  for (const toml::node& item : *list) {
    const toml::array* pair = item.as_array();
    if (pair == nullptr || pair->size() != 2) refuse_value(key, setting);
    const auto epoch = number(*pair->get(0)), lr = number(*pair->get(1));
    if (!epoch || !lr || !std::isfinite(*epoch) || !std::isfinite(*lr) || *epoch < 0 || *lr < 0)
      refuse_value(key, setting);
    if (!knots.empty() && *epoch <= knots.back().first) refuse_value(key, setting);
    knots.emplace_back(*epoch, *lr);
  }
  return knots;
}

std::string text_value(const Key& key, const Setting& setting) {
  if (setting.node && setting.node->is_string()) return setting.node->value<std::string>().value();
  // On the command line quotes are optional: --set run.name=12 is a name.
  if (!setting.raw) refuse_value(key, setting);
  return *setting.raw;
}

Value to_value(const Key& key, const Setting& setting) {
  const toml::node* node = setting.node.get();
  switch (key.type) {
    case KeyType::boolean:
      if (node == nullptr || !node->is_boolean()) refuse_value(key, setting);
      return node->value<bool>().value();
    case KeyType::integer: {
      if (node == nullptr || !node->is_integer()) refuse_value(key, setting);
      const auto value = node->value<std::int64_t>().value();
      if (!key.range.contains(static_cast<double>(value))) refuse_value(key, setting);
      return value;
    }
    case KeyType::real: {
      const auto value = node == nullptr ? std::nullopt : number(*node);
      if (!value || !std::isfinite(*value) || !key.range.contains(*value))
        refuse_value(key, setting);
      return *value;
    }
    case KeyType::choice: {
      std::string value = text_value(key, setting);
      if (std::count(key.choices.begin(), key.choices.end(), value) == 0)
        refuse_value(key, setting);
      return value;
    }
    case KeyType::knots:
      return knots_value(key, setting);
    case KeyType::text:
      break;
  }
  return text_value(key, setting);
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
  for (const Key& key : config_keys()) {
    const auto at = settings.find(key.path);
    if (at == settings.end()) continue;
    if (!applies(key, config))
      refuse(at->second,
             fmt::format("{} belongs to {} = {}, but {} is {}; remove it or change {}", key.path,
                         key.only.selector, fmt::join(key.only.values, " or "), key.only.selector,
                         to_toml(find_key(key.only.selector)->get(config)), key.only.selector));
    key.set(config, to_value(key, at->second));
  }
  return config;
}

}  // namespace

Config parse_config(std::string_view text, std::span<const std::string> overrides,
                    std::string_view source) {
  Settings settings;
  collect(parse_toml(text, source), source, settings);
  for (const std::string& override_text : overrides) collect_override(override_text, settings);
  Config config = apply(settings);
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
