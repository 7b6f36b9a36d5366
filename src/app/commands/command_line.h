#pragma once

#include <cstdint>
#include <string>

#include <CLI/CLI.hpp>

/// Validation of the command line before anything runs.
namespace dkfac::app {

inline constexpr std::int64_t kMost = 1 << 30;  ///< Limit of counts: images, steps, epochs.

/// Validator of decimal integers in [low, high]. CLI11 alone accepts numbers that do not fit into
/// 64 bits, and truncates them.
[[nodiscard]] CLI::Validator whole(std::int64_t low, std::int64_t high);
/// Validator of numbers in (low, high]; refuses NaN.
[[nodiscard]] CLI::Validator above(double low, double high);
/// Validator of names of files and folders, which refuses an empty one, e.g. from an unset
/// variable.
[[nodiscard]] CLI::Validator some_name();

/// Returns "unknown command 'trian'; did you mean 'train'? ", or "" if the first words are
/// commands.
[[nodiscard]] std::string unknown_command(const CLI::App& app, int argc, const char* const* argv);

/// Quotes and joins the arguments for a shell.
[[nodiscard]] std::string quoted_line(int argc, const char* const* argv);

}  // namespace dkfac::app
