#include "app/config/settings.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <sstream>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "dkfac/core/error.h"

namespace dkfac::app {

namespace {

constexpr std::size_t kMostBytes = 1 << 20;
constexpr int kMostDepth = 16;

/// Returns the position after the quoted text that begins at `at`.
std::size_t skip_quoted(std::string_view text, std::size_t at) {
  const char quote = text[at];
  const bool lines = text.substr(at).starts_with(std::string(3, quote));
  const std::string end(lines ? 3 : 1, quote);
  for (at += end.size(); at < text.size() && !text.substr(at).starts_with(end); ++at) {
    if (text[at] == '\n' && !lines) return at;
    if (text[at] == '\\' && quote == '"') ++at;
  }
  at = std::min(at + end.size(), text.size());
  // Up to two quotes may precede the closing three.
  for (int i = 0; lines && i < 2 && at < text.size() && text[at] == quote; ++i) ++at;
  return at;
}

/// Checks the nesting depth by counting the parts of dotted keys and the open brackets.
void check_depth(std::string_view text, std::string_view source) {
  int dots = 0, brackets = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '"' || c == '\'') at = skip_quoted(text, at) - 1;
    if (c == '#') at = std::min(text.find('\n', at), text.size()) - 1;
    if (c == '.') ++dots;
    if (c == '[' || c == '{') ++brackets;
    if (c == ']' || c == '}') --brackets;
    if (std::string_view("[]{},=\n").find(c) != std::string_view::npos) dots = 0;
    if (dots < kMostDepth && brackets <= kMostDepth) continue;
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<long>(at), '\n');
    throw InvalidArgument(fmt::format(
        "[config] {}:{}: keys or brackets nest deeper than {}; write section.key = value", source,
        line, kMostDepth));
  }
}

std::string shown(const toml::node& node) {
  std::ostringstream out;
  node.visit([&](const auto& value) { out << value; });
  return std::move(out).str();
}

std::string shown(const Setting& setting) {
  return shortened(setting.raw ? *setting.raw : shown(*setting.node));
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

std::optional<double> number_in(const toml::node& node) {
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
    const auto epoch = number_in(*pair->get(0)), lr = number_in(*pair->get(1));
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

std::string choice_value(const Key& key, const Setting& setting) {
  const toml::node* node = setting.node.get();
  if (node != nullptr && node->is_boolean() && !key.booleans.empty())
    return key.booleans[node->value<bool>().value() ? 1 : 0];
  std::string value = text_value(key, setting);
  if (std::count(key.choices.begin(), key.choices.end(), value) == 0) refuse_value(key, setting);
  return value;
}

// Text names files and is written as TOML for later commands, so it must be valid.
void check_text(const Key& key, const Setting& setting, const std::string& text) {
  bool readable = text.find('\0') == std::string::npos;
  try {
    (void)toml::parse("x = " + to_toml(Value(text)));
  } catch (const toml::parse_error&) {
    readable = false;
  }
  if (!readable)
    refuse(setting, fmt::format("{} has bytes that are no text; write it in UTF-8, without zeros",
                                key.path));
}

// TOML integers end at 2^63 - 1; larger seeds are quoted.
std::uint64_t seed_value(const Key& key, const Setting& setting) {
  std::uint64_t seed = 0;
  if (setting.node && setting.node->is_integer()) {
    const auto value = setting.node->value<std::int64_t>().value();
    if (value < 0) refuse_value(key, setting);
    return static_cast<std::uint64_t>(value);
  }
  const std::string text = text_value(key, setting);
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, seed);
  // TOML has no leading zeros either, which some take for octal.
  if (text.size() > 1 && text.front() == '0') refuse_value(key, setting);
  if (error != std::errc() || at != end) refuse_value(key, setting);
  return seed;
}

}  // namespace

std::string read_toml_text(const std::filesystem::path& file) {
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored))
    throw MissingInput(fmt::format(
        "[config] there is no file '{}'; the configurations of dkfac are in its folder configs",
        file.string()));
  std::string text(kMostBytes + 1, '\0');
  std::ifstream in(file, std::ios::binary);
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad() || in.gcount() == 0)
    throw IoError(fmt::format(
        "[config] cannot read '{}'; check that it is a readable, non-empty file", file.string()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  return text;
}

toml::table parse_toml(std::string_view text, std::string_view source) {
  if (text.size() > kMostBytes)
    throw InvalidArgument(
        fmt::format("[config] {}: it is longer than {} bytes; check that it is the right file",
                    source, kMostBytes));
  check_depth(text, source);
  try {
    return toml::parse(text, source);
  } catch (const toml::parse_error& error) {
    const std::string_view what = error.description();
    const bool too_large = what.find("64 bits") != std::string_view::npos;
    throw InvalidArgument(fmt::format(
        "[config] {}: {}; {}", place(source, error.source()), what,
        too_large ? "write a smaller one, or a seed in quotes" : "correct the TOML there"));
  }
}

std::string place(std::string_view source, const toml::source_region& region) {
  return region.begin.line == 0 ? std::string(source)
                                : fmt::format("{}:{}", source, region.begin.line);
}

void refuse(const Setting& setting, const std::string& what) {
  throw InvalidArgument(fmt::format("[config] {}: {}", setting.where, what));
}

Setting setting_of(const toml::node& node, std::string_view source) {
  return {place(source, node.source()), copy_of(node), {}};
}

Setting override_setting(const std::string& text, std::string raw) {
  Setting setting{"--set " + shortened(text), nullptr, std::move(raw)};
  try {
    const toml::table table = parse_toml("x = " + *setting.raw, setting.where);
    if (table.size() == 1) setting.node = copy_of(*table.get("x"));
  } catch (const InvalidArgument&) {
    setting.node = nullptr;
  }
  return setting;
}

void collect_section(const std::string& section, const toml::table& table, std::string_view source,
                     Settings& settings) {
  const bool known = std::ranges::any_of(
      config_keys(), [&](const Key& key) { return key.path.starts_with(section + '.'); });
  if (!known && table.empty())
    refuse(setting_of(table, source),
           fmt::format("unknown section [{}]; 'dkfac info config' lists all", shortened(section)));
  for (const auto& [name, node] : table)
    add_setting(section + '.' + std::string(name.str()), setting_of(node, source), settings);
}

void add_setting(const std::string& path, Setting setting, Settings& settings) {
  const std::string where = setting.where;
  const auto [at, added] = settings.try_emplace(path, std::move(setting));
  if (!added)
    throw InvalidArgument(fmt::format("[config] {}: {} is also given at {}; remove one of them",
                                      where, shortened(path), at->second.where));
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
      // 2^53 + 1 and 2^53 are the same double.
      if (!key.range.contains(static_cast<double>(value)) ||
          value > static_cast<std::int64_t>(key.range.high))
        refuse_value(key, setting);
      return value;
    }
    case KeyType::real: {
      const auto value = node == nullptr ? std::nullopt : number_in(*node);
      if (!value || !std::isfinite(*value) || !key.range.contains(*value))
        refuse_value(key, setting);
      return *value;
    }
    case KeyType::choice:
      return choice_value(key, setting);
    case KeyType::knots:
      return knots_value(key, setting);
    case KeyType::seed:
      return seed_value(key, setting);
    case KeyType::text:
      break;
  }
  std::string text = text_value(key, setting);
  check_text(key, setting, text);
  return text;
}

Value read_value(const Key& key, const std::string& toml) {
  return to_value(key, override_setting(key.path + '=' + toml, toml));
}

namespace {

/// The condition of a key that does not apply, or that of the key which it depends on.
const Condition& broken_condition(const Key& key, const Config& config) {
  const Key& selector = *find_key(key.only.selector);
  return applies(selector, config) ? key.only : broken_condition(selector, config);
}

}  // namespace

Value apply(const Key& key, const Setting& setting, Config& config) {
  if (!applies(key, config)) {
    const Condition& broken = broken_condition(key, config);
    refuse(setting,
           fmt::format("{} belongs to {} = {}, but {} is {}; remove it or change {}", key.path,
                       broken.selector, fmt::join(broken.values, " or "), broken.selector,
                       to_toml(find_key(broken.selector)->get(config)), broken.selector));
  }
  Value value = to_value(key, setting);
  key.set(config, value);
  return value;
}

}  // namespace dkfac::app
