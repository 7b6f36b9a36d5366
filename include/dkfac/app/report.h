#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dkfac/app/result.h"

namespace dkfac::app {

/// Mean and spread over seeds.
struct Spread {
  double mean = 0, min = 0, max = 0, stddev = 0;  ///< stddev: sample, 0 for one value.
  std::int64_t count = 0;
};
[[nodiscard]] Spread spread_of(std::span<const double> values);

/// One line of the comparison.
struct GroupSummary {
  std::string name;
  std::int64_t runs = 0, reached = 0;     ///< Runs; those that reached the target.
  std::optional<Spread> epochs, seconds;  ///< To target, over the runs that reached it.
  Spread final_accuracy, best_accuracy;
  Spread seconds_per_step;
};
struct Comparison {
  std::optional<double> target;
  std::vector<GroupSummary> groups;
  std::string fewest_epochs, fewest_seconds, best_accuracy;  ///< Winners, empty when nobody.
  std::string caption;  ///< Model, data, batch, ranks: what the runs have in common.
};
[[nodiscard]] Comparison summarize(std::span<const RunGroup> groups, std::optional<double> target);

/// Plain text for a terminal, aligned, with the winners in words.
[[nodiscard]] std::string text_table(const Comparison& comparison);
[[nodiscard]] std::string markdown_table(const Comparison& comparison);
/// Self-contained HTML page: the table and curves as inline SVG (loss and accuracy against epochs
/// and against seconds, every group in one picture, mean line and min-max band over seeds), the
/// phases of a step as bars, the configuration. No scripts, no network.
[[nodiscard]] std::string html_report(std::span<const RunGroup> groups,
                                      const Comparison& comparison, const std::string& title);
/// The picture alone (accuracy against epochs and against seconds), e.g. for a README.
[[nodiscard]] std::string svg_curves(std::span<const RunGroup> groups,
                                     const Comparison& comparison);

/// Writes `text` to a temporary file beside `path`, syncs it and renames it. Throws IoError.
void write_file(const std::filesystem::path& path, const std::string& text);

[[nodiscard]] std::string to_json(const RunResult& result);
[[nodiscard]] std::string to_json(const Comparison& comparison);

}  // namespace dkfac::app
