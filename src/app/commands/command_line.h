#pragma once

#include <cstdint>
#include <string>

#include <CLI/CLI.hpp>

/// What the command line is checked for before anything runs.
namespace dkfac::app {

inline constexpr std::int64_t kMost = 1 << 30;  ///< Of what is counted: images, steps, epochs.

/// Whole decimal numbers in [low, high]. CLI11 alone takes what does not fit into 64 bits, and
/// cuts it off.
[[nodiscard]] CLI::Validator whole(std::int64_t low, std::int64_t high);
/// Numbers in (low, high]; a NaN is none.
[[nodiscard]] CLI::Validator above(double low, double high);

/// "unknown command 'trian'; did you mean 'train'? ", or "" where the first words are commands.
[[nodiscard]] std::string unknown_command(const CLI::App& app, int argc, const char* const* argv);

/// The words as a shell takes them.
[[nodiscard]] std::string quoted_line(int argc, const char* const* argv);

}  // namespace dkfac::app
