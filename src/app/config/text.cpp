#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "dkfac/core/device_info.h"
#include "dkfac/core/error.h"

#include "app/config/keys.h"
#include "app/config/phases.h"

namespace dkfac::app {

namespace {

using nlohmann::ordered_json;

// Returns the shortest text that reads back as the same double, and as a TOML float.
std::string real_text(double x) {
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return x > 0 ? "inf" : "-inf";
  std::string text = fmt::format("{}", x);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\u{:04X}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    } else {
      out += c;
    }
  }
  return out + '"';
}

struct TomlText {
  std::string operator()(bool x) const { return x ? "true" : "false"; }
  std::string operator()(std::int64_t x) const { return std::to_string(x); }
  std::string operator()(std::uint64_t x) const {
    return std::in_range<std::int64_t>(x) ? std::to_string(x) : quoted(std::to_string(x));
  }
  std::string operator()(double x) const { return real_text(x); }
  std::string operator()(const std::string& x) const { return quoted(x); }
  std::string operator()(const Knots& x) const {
    std::vector<std::string> pairs;
    for (const auto& [epoch, lr] : x)
      pairs.push_back(fmt::format("[{}, {}]", real_text(epoch), real_text(lr)));
    return fmt::format("[{}]", fmt::join(pairs, ", "));
  }
};

std::vector<std::string> quoted_choices(const Key& key) {
  std::vector<std::string> out;
  for (const std::string& choice : key.choices) out.push_back(quoted(choice));
  return out;
}

std::string_view section_of(std::string_view path) { return path.substr(0, path.find('.')); }
std::string_view leaf_of(std::string_view path) { return path.substr(path.rfind('.') + 1); }

// Returns the distance of a typed path from a known one. A different section costs one regardless
// of its spelling, so that a key in the wrong section is found.
std::size_t path_distance(std::string_view typed, std::string_view known) {
  const std::size_t whole = edit_distance(typed, known);
  const std::size_t leaf = edit_distance(leaf_of(typed), leaf_of(known));
  return std::min(whole, leaf + (section_of(typed) == section_of(known) ? 0 : 1));
}

void add_range(const Range& range, ordered_json& entry) {
  if (std::isfinite(range.low)) entry[range.open_low ? "above" : "least"] = range.low;
  if (std::isfinite(range.high)) entry[range.open_high ? "below" : "most"] = range.high;
}

ordered_json values_json(const Condition& only) {
  ordered_json values = ordered_json::array();
  for (const std::string& value : only.values)
    if (find_key(only.selector)->type == KeyType::real)
      values.push_back(std::stod(value));
    else
      values.push_back(value);
  return values;
}

ordered_json key_json(const Key& key, const Config& defaults) {
  ordered_json entry = {{"path", key.path},
                        {"type", name_of(key.type)},
                        {"default", to_toml(key.get(defaults))},
                        {"allowed", expectation(key)},
                        {"help", key.help},
                        {"phase", may_change(key.path)}};
  add_range(key.range, entry);
  if (!key.choices.empty()) entry["choices"] = key.choices;
  if (!key.booleans.empty()) entry["booleans"] = key.booleans;
  if (!key.only.selector.empty())
    entry["only"] = {{"selector", key.only.selector}, {"values", values_json(key.only)}};
  return entry;
}

}  // namespace

std::string_view name_of(KeyType type) noexcept {
  switch (type) {
    case KeyType::boolean:
      return "true/false";
    case KeyType::integer:
    case KeyType::seed:
      return "integer";
    case KeyType::real:
      return "number";
    case KeyType::text:
      return "text";
    case KeyType::choice:
      return "choice";
    case KeyType::knots:
      return "list";
  }
  return "?";
}

const Key* find_key(std::string_view path) {
  const auto& keys = config_keys();
  const auto at =
      std::find_if(keys.begin(), keys.end(), [&](const Key& k) { return k.path == path; });
  return at == keys.end() ? nullptr : &*at;
}

bool fulfils(const Condition& condition, const Value& chosen) {
  const auto* const number = std::get_if<double>(&chosen);
  return std::ranges::count(condition.values, number != nullptr
                                                  ? fmt::format("{}", *number)
                                                  : std::get<std::string>(chosen)) > 0;
}

bool applies(const Key& key, const Config& config) {
  if (key.only.selector.empty()) return true;
  const Key& selector = *find_key(key.only.selector);
  return fulfils(key.only, selector.get(config)) && applies(selector, config);
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

std::string shortened(std::string text) {
  constexpr std::size_t kMost = 100;
  if (text.size() > kMost) text.replace(kMost - 3, std::string::npos, "...");
  return text;
}

std::string nearest_key(std::string_view path) {
  constexpr std::size_t kLongest = 100;  // The cost is the product of both lengths.
  if (path.size() > kLongest) return "";
  const Key* best = nullptr;
  std::size_t best_distance = std::max<std::size_t>(2, leaf_of(path).size() / 2) + 1;
  for (const Key& key : config_keys()) {
    const std::size_t distance = path_distance(path, key.path);
    if (distance < best_distance) {
      best = &key;
      best_distance = distance;
    }
  }
  return best == nullptr ? "" : best->path;
}

std::string unknown_key_hint(const std::string& path) {
  const std::string near = nearest_key(path);
  return near.empty() ? "'dkfac info config' lists all keys"
                      : fmt::format("did you mean '{}'? 'dkfac info config' lists all keys", near);
}

std::pair<std::string, std::string> split_override(const std::string& text) {
  const std::size_t equals = text.find('=');
  const std::size_t begin = text.find_first_not_of(' ');
  if (equals == std::string::npos || begin == equals)
    throw InvalidArgument(fmt::format(
        "[config] --set {}: no 'key=value'; e.g. --set optimizer.damping=0.01", shortened(text)));
  const std::size_t end = text.find_last_not_of(' ', equals - 1) + 1;
  return {text.substr(begin, end - begin), text.substr(equals + 1)};
}

std::string to_toml(const Value& value) { return std::visit(TomlText{}, value); }

std::string expectation(const Key& key) {
  switch (key.type) {
    case KeyType::boolean:
      return "true or false";
    case KeyType::integer:
      return fmt::format("an integer {}", to_string(key.range));
    case KeyType::seed:
      return "an integer in [0, 18446744073709551615], in quotes above 9223372036854775807";
    case KeyType::real:
      return fmt::format("a number {}", to_string(key.range));
    case KeyType::text:
      return "a text in quotes";
    case KeyType::choice:
      return fmt::format("one of {}", fmt::join(quoted_choices(key), ", "));
    case KeyType::knots:
      return "a list of [epoch, value] pairs with ascending epochs >= 0 and values >= 0";
  }
  return "?";
}

std::string to_toml(const Config& config, Comments comments) {
  std::string out, section;
  for (const Key& key : config_keys()) {
    if (!applies(key, config)) continue;
    if (section_of(key.path) != section) {
      out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section_of(key.path));
      section = section_of(key.path);
    }
    const std::string line = fmt::format("{} = {}", leaf_of(key.path), to_toml(key.get(config)));
    out += comments == Comments::help ? fmt::format("{:<36} # {}\n", line, key.help) : line + '\n';
  }
  return out + phases_to_toml(config, comments);
}

std::string config_listing() {
  const Config defaults;
  std::string out, section;
  for (const Key& key : config_keys()) {
    if (section_of(key.path) != section) {
      section = section_of(key.path);
      out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section);
    }
    out += fmt::format("  {} = {}\n      {}\n      {}", key.path, to_toml(key.get(defaults)),
                       key.help, expectation(key));
    if (!key.only.selector.empty())
      out +=
          fmt::format("; only when {} is {}", key.only.selector, fmt::join(key.only.values, ", "));
    if (may_change(key.path)) out += "; a [[phase]] may change it";
    out += '\n';
  }
  return out;
}

std::string config_listing_json() {
  const Config defaults;
  ordered_json keys = ordered_json::array();
  for (const Key& key : config_keys()) keys.push_back(key_json(key, defaults));
  return ordered_json{{"version", version()}, {"keys", std::move(keys)}}.dump(1) + "\n";
}

}  // namespace dkfac::app
