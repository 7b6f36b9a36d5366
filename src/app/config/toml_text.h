#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <toml++/toml.h>

namespace dkfac::app {

/// Reading and parsing of TOML for configurations.

/// Reads a file; of one that is far too long, only enough for parse_toml() to refuse it. Throws
/// MissingInput and IoError.
[[nodiscard]] std::string read_toml_text(const std::filesystem::path& file);
/// Parses TOML. Throws InvalidArgument with the line for invalid text, more than 1 MiB, or nesting
/// deeper than 16, because the parser's trees are destroyed, copied and printed recursively.
[[nodiscard]] toml::table parse_toml(std::string_view text, std::string_view source);
/// Returns a source location such as "lenet.toml:12".
[[nodiscard]] std::string place(std::string_view source, const toml::source_region& region);

}  // namespace dkfac::app
