#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <toml++/toml.h>

#include "app/config/keys.h"
#include "app/config/toml_text.h"

namespace dkfac::app {

/// One "path = value" as somebody wrote it.
struct Setting {
  std::string where;                 ///< "lenet.toml:12", "--set a.b=c"
  std::unique_ptr<toml::node> node;  ///< The value; null when the raw text is no TOML.
  std::optional<std::string> raw;    ///< Of --set: the text after '='.
};
using Settings = std::map<std::string, Setting>;  ///< By path.

[[noreturn]] void refuse(const Setting& setting, const std::string& what);
[[nodiscard]] Setting setting_of(const toml::node& node, std::string_view source);
/// Of --set `text`, whose value is `raw`, as TOML; a word that is none (lenet-bn) stays text.
[[nodiscard]] Setting override_setting(const std::string& text, std::string raw);
/// Refuses a path that is there.
void add_setting(const std::string& path, Setting setting, Settings& settings);
/// Adds the keys of a section.
void collect_section(const std::string& section, const toml::table& table, std::string_view source,
                     Settings& settings);

/// The value, of the key's type and in its range.
[[nodiscard]] Value to_value(const Key& key, const Setting& setting);
/// What to_toml() has written.
[[nodiscard]] Value read_value(const Key& key, const std::string& toml);
/// Refuses a key that does not apply; sets it otherwise.
Value apply(const Key& key, const Setting& setting, Config& config);

}  // namespace dkfac::app
