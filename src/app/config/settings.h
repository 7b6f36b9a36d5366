#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <toml++/toml.h>

#include "app/config/keys.h"

namespace dkfac::app {

/// Reads a file; of one that is far too long, only enough for parse_toml() to refuse it. Throws
/// MissingInput and IoError.
[[nodiscard]] std::string read_toml_text(const std::filesystem::path& file);
/// Parses TOML. Throws InvalidArgument with the line for invalid text, more than 1 MiB, or nesting
/// deeper than 16, because the parser's trees are destroyed, copied and printed recursively.
[[nodiscard]] toml::table parse_toml(std::string_view text, std::string_view source);
/// Returns a source location such as "lenet.toml:12".
[[nodiscard]] std::string place(std::string_view source, const toml::source_region& region);

/// One "path = value" as written by the user.
struct Setting {
  std::string where;                 ///< "lenet.toml:12", "--set a.b=c"
  std::unique_ptr<toml::node> node;  ///< The value; null when the raw text is no TOML.
  std::optional<std::string> raw;    ///< For --set: the text after '='.
};
using Settings = std::map<std::string, Setting>;  ///< By path.

[[noreturn]] void refuse(const Setting& setting, const std::string& what);
[[nodiscard]] Setting setting_of(const toml::node& node, std::string_view source);
/// Returns the setting of --set `text`, whose value `raw` is parsed as TOML; a word that is not
/// TOML (lenet-bn) is kept as text.
[[nodiscard]] Setting override_setting(const std::string& text, std::string raw);
/// Adds a setting; refuses a duplicate path.
void add_setting(const std::string& path, Setting setting, Settings& settings);
/// Adds the keys of a section.
void collect_section(const std::string& section, const toml::table& table, std::string_view source,
                     Settings& settings);

/// Converts a setting to a value of the key's type and range, or refuses it.
[[nodiscard]] Value to_value(const Key& key, const Setting& setting);
/// Reads back a value written by to_toml().
[[nodiscard]] Value read_value(const Key& key, const std::string& toml);
/// Sets a key in `config`; refuses one that does not apply.
Value apply(const Key& key, const Setting& setting, Config& config);

}  // namespace dkfac::app
