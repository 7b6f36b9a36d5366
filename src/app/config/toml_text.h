#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <toml++/toml.h>

namespace dkfac::app {

/// Text and trees of configurations and sweeps. `who` begins messages, in brackets: "config".

/// The content of a file. Throws MissingInput with `hint`, which says what else to name, and
/// IoError. Of a file that is far too long, only what shows that it is.
[[nodiscard]] std::string read_toml_text(const std::filesystem::path& file, std::string_view who,
                                         std::string_view hint);
/// Throws InvalidArgument with the line for what is no TOML, is longer than 1 MiB, or nests deeper
/// than 16: the parser's trees are destroyed, copied and printed by recursion.
[[nodiscard]] toml::table parse_toml(std::string_view text, std::string_view source,
                                     std::string_view who);
/// "lenet.toml:12"
[[nodiscard]] std::string place(std::string_view source, const toml::source_region& region);

}  // namespace dkfac::app
