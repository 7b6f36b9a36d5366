#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "app/config/keys.h"

namespace dkfac::app {

inline constexpr double kMaxInteger = 9007199254740992.0;  // 2^53: exact as a double.
/// Largest number of epochs and of samples in a batch: products of two of them fit into 64 bits.
inline constexpr double kMaxCount = 1 << 30;

/// Builder of the key table. A field is a generic lambda that returns a member of a Config.
class KeyTable {
 public:
  template <class Field>
  Key& boolean(std::string path, Field field, std::string help) {
    return plain<bool>(std::move(path), KeyType::boolean, {}, field, std::move(help));
  }
  template <class Field>
  Key& integer(std::string path, Field field, Range range, std::string help) {
    range.high = std::min(range.high, kMaxInteger);
    return plain<std::int64_t>(std::move(path), KeyType::integer, range, field, std::move(help));
  }
  /// Adds a key for any 64-bit number.
  template <class Field>
  Key& seed(std::string path, Field field, std::string help) {
    return plain<std::uint64_t>(std::move(path), KeyType::seed, {}, field, std::move(help));
  }
  template <class Field>
  Key& real(std::string path, Field field, Range range, std::string help) {
    return plain<double>(std::move(path), KeyType::real, range, field, std::move(help));
  }
  template <class Field>
  Key& text(std::string path, Field field, std::string help) {
    return plain<std::string>(std::move(path), KeyType::text, {}, field, std::move(help));
  }
  template <class Field>
  Key& knots(std::string path, Field field, std::string help) {
    return plain<Knots>(std::move(path), KeyType::knots, at_least(0), field, std::move(help));
  }
  /// Adds a key for a name out of a list, stored as text.
  template <class Field>
  Key& name(std::string path, Field field, std::vector<std::string> choices, std::string help) {
    Key& key = plain<std::string>(std::move(path), KeyType::choice, {}, field, std::move(help));
    key.choices = std::move(choices);
    return key;
  }
  /// Adds a key for a name that represents a value of type T.
  template <class T, class Field>
  Key& choice(std::string path, Field field, std::vector<std::pair<std::string, T>> choices,
              std::string help) {
    Key key{.path = std::move(path), .type = KeyType::choice, .help = std::move(help)};
    for (const auto& [name, value] : choices) key.choices.push_back(name);
    key.get = [field, choices](const Config& config) -> Value {
      for (const auto& [name, value] : choices)
        if (value == field(config)) return name;
      return std::string("?");
    };
    key.set = [field, choices](Config& config, const Value& v) {
      for (const auto& [name, value] : choices)
        if (name == std::get<std::string>(v)) field(config) = value;
    };
    keys.push_back(std::move(key));
    return keys.back();
  }

  std::vector<Key> keys;

 private:
  template <class Stored, class Field>
  Key& plain(std::string path, KeyType type, Range range, Field field, std::string help) {
    Key key{.path = std::move(path), .type = type, .range = range, .help = std::move(help)};
    key.get = [field](const Config& c) -> Value { return static_cast<Stored>(field(c)); };
    key.set = [field](Config& c, const Value& v) {
      using Member = std::remove_reference_t<decltype(field(c))>;
      field(c) = static_cast<Member>(std::get<Stored>(v));
    };
    keys.push_back(std::move(key));
    return keys.back();
  }
};

#define DKFAC_FIELD(member) \
  [](auto& c) -> auto& { return c.member; }
/// Path and field of a key that is called as its member.
#define DKFAC_KEY(member) #member, DKFAC_FIELD(member)

}  // namespace dkfac::app
