#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "app/shared/config.h"
#include "core/shared/fields.h"

namespace dkfac::app {

using Knots = std::vector<std::pair<double, double>>;
using Value = std::variant<bool, std::int64_t, std::uint64_t, double, std::string, Knots>;

enum class KeyType : std::uint8_t { boolean, integer, seed, real, text, choice, knots };
[[nodiscard]] std::string_view name_of(KeyType type) noexcept;

/// Condition for a key to apply: the key `selector` applies and has one of `values`. An empty
/// selector always holds. Its value is a choice or a number ("0").
struct Condition {
  std::string selector;
  std::vector<std::string> values;
};

/// Description of one key, with accessors to its field.
struct Key {
  std::string path;  ///< "section.key"
  KeyType type = KeyType::text;
  Range range = {};
  std::vector<std::string> choices = {};
  std::string help = {};
  Condition only = {};
  std::vector<std::string> booleans = {};  ///< Choices that false and true stand for, if any.
  std::function<Value(const Config&)> get = {};
  std::function<void(Config&, const Value&)> set = {};  ///< The value has this type and range.

  Key& where(std::string selector, std::vector<std::string> values) {
    only = {std::move(selector), std::move(values)};
    return *this;
  }
  Key& or_boolean(std::string for_false, std::string for_true) {
    booleans = {std::move(for_false), std::move(for_true)};
    return *this;
  }
};

/// Returns the key table in the order of the file: the keys of each section together, a selector
/// before the keys that depend on it.
[[nodiscard]] const std::vector<Key>& config_keys();
[[nodiscard]] const Key* find_key(std::string_view path);  ///< Null for an unknown one.
/// Whether the value of the selector is one of the condition's.
[[nodiscard]] bool fulfils(const Condition& condition, const Value& chosen);
[[nodiscard]] bool applies(const Key& key, const Config& config);
/// config_listing() as JSON, for programs: {version, keys: [{path, type, default (as TOML),
/// allowed, help, phase, least or above, most or below, choices, booleans, only: {selector,
/// values}}]}, each but the first six only where there is one.
[[nodiscard]] std::string config_listing_json();
/// Returns the known path nearest to a misspelt one, "" when none is near.
[[nodiscard]] std::string nearest_key(std::string_view path);
/// Returns the end of an error message about an unknown path.
[[nodiscard]] std::string unknown_key_hint(const std::string& path);
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

/// Adders of groups of keys, which config_keys() calls in the order of the sections.
class KeyTable;
void add_data_keys(KeyTable& table);
void add_augment_keys(KeyTable& table);
void add_model_keys(KeyTable& table);
void add_train_keys(KeyTable& table);
void add_optimizer_keys(KeyTable& table);

/// Splits "section.key=value" into key and value, without blanks around the key. Throws
/// InvalidArgument.
[[nodiscard]] std::pair<std::string, std::string> split_override(const std::string& text);
/// Shortens a text to about 100 characters for a message.
[[nodiscard]] std::string shortened(std::string text);
/// Formats a value as TOML: 1e-3 stays a float; text is quoted, and so is a seed that does not fit
/// into a TOML integer.
[[nodiscard]] std::string to_toml(const Value& value);
/// Describes the allowed values: "a number in (0, 1]", "one of \"f32\", \"f64\"".
[[nodiscard]] std::string expectation(const Key& key);

}  // namespace dkfac::app
