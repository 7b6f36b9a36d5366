#include "app/config_settings.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "dkfac/core/error.h"

namespace dkfac::app {

namespace {

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

std::unique_ptr<toml::node> copy_of(const toml::node& node) {
  return node.visit([](const auto& value) -> std::unique_ptr<toml::node> {
    return std::make_unique<std::decay_t<decltype(value)>>(value);
  });
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

}  // namespace

void refuse(const Setting& setting, const std::string& what) {
  throw InvalidArgument(fmt::format("[config] {}: {}", setting.where, what));
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

Setting setting_of(const toml::node& node, std::string_view source) {
  return {place(source, node.source()), copy_of(node), {}};
}

Setting override_setting(const std::string& text, std::string raw) {
  Setting setting{"--set " + text, nullptr, std::move(raw)};
  try {
    const toml::table table = toml::parse("x = " + *setting.raw);
    if (table.size() == 1) setting.node = copy_of(*table.get("x"));
  } catch (const toml::parse_error&) {
    setting.node = nullptr;
  }
  return setting;
}

void collect_section(const std::string& section, const toml::table& table, std::string_view source,
                     Settings& settings) {
  for (const auto& [name, node] : table)
    settings[section + '.' + std::string(name.str())] = setting_of(node, source);
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

Value read_value(const Key& key, const std::string& toml) {
  return to_value(key, override_setting(key.path + '=' + toml, toml));
}

Value apply(const Key& key, const Setting& setting, Config& config) {
  if (!applies(key, config))
    refuse(setting,
           fmt::format("{} belongs to {} = {}, but {} is {}; remove it or change {}", key.path,
                       key.only.selector, fmt::join(key.only.values, " or "), key.only.selector,
                       to_toml(find_key(key.only.selector)->get(config)), key.only.selector));
  Value value = to_value(key, setting);
  key.set(config, value);
  return value;
}

}  // namespace dkfac::app
