#include "app/commands/command_line.h"

#include <cctype>
#include <charconv>
#include <string_view>

#include <fmt/core.h>

#include "app/config/keys.h"
#include "core/shared/printable.h"

namespace dkfac::app {

namespace {

/// Returns a validator; `allowed` describes the range, e.g. "in [1, 10]".
template <class Number, class Contains>
CLI::Validator number(std::string allowed, Contains contains) {
  const auto check = [allowed, contains](const std::string& text) -> std::string {
    Number x{};
    const char* const end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data(), end, x);
    // CLI11 reads 010 as octal, which is 8.
    const std::size_t digits = text.starts_with('-') ? 1 : 0;
    const bool octal = text.size() > digits + 1 && text[digits] == '0' &&
                       std::isdigit(static_cast<unsigned char>(text[digits + 1])) != 0;
    if (error == std::errc() && at == end && contains(x) && !octal) return {};
    return fmt::format("{} is no number {}", shortened(text), allowed);
  };
  return CLI::Validator(check, std::move(allowed));
}

}  // namespace

CLI::Validator whole(std::int64_t low, std::int64_t high) {
  return number<std::int64_t>(fmt::format("in [{}, {}]", low, high),
                              [=](std::int64_t x) { return low <= x && x <= high; });
}

CLI::Validator above(double low, double high) {
  return number<double>(fmt::format("in ({}, {}]", low, high),
                        [=](double x) { return low < x && x <= high; });
}

CLI::Validator some_name() {
  const auto check = [](const std::string& text) -> std::string {
    return text.empty() ? "an empty name; give that of a file or folder" : "";
  };
  return CLI::Validator(check, "");
}

std::string unknown_command(const CLI::App& app, int argc, const char* const* argv) {
  const CLI::App* at = &app;
  const auto all = [](const CLI::App*) { return true; };
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const std::vector<const CLI::App*> commands = at->get_subcommands(all);
    if (commands.empty()) return {};
    if (word.starts_with('-')) continue;
    const CLI::App *next = nullptr, *near = commands.front();
    for (const CLI::App* command : commands) {
      if (command->get_name() == word) next = command;
      if (edit_distance(command->get_name(), word) < edit_distance(near->get_name(), word))
        near = command;
    }
    if (next == nullptr) {
      const bool close = edit_distance(near->get_name(), word) <= word.size() / 2;
      return fmt::format("unknown command '{}'; {}", shortened(word),
                         close ? "did you mean '" + near->get_name() + "'? " : "");
    }
    at = next;
  }
  return {};
}

std::string quoted_line(int argc, const char* const* argv) {
  std::string line;
  for (int i = 0; i < argc; ++i) line += (i > 0 ? " " : "") + shell_word(argv[i]);
  return line;
}

}  // namespace dkfac::app
