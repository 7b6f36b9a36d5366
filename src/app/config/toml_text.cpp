#include "app/config/toml_text.h"

#include <algorithm>
#include <fstream>

#include <fmt/core.h>

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

}  // namespace dkfac::app
