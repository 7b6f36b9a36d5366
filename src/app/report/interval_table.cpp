#include <algorithm>

#include <fmt/core.h>

#include "app/report/table.h"

namespace dkfac::app {
namespace {

enum class Sign { none, always };

/// "91.20 \u00b1 0.35", or the mean alone for one seed.
std::string with_interval(const Spread& spread, double factor, int digits, Sign sign) {
  if (spread.count == 0) return "-";
  const double mean = factor * spread.mean;
  const std::string text =
      sign == Sign::always ? fmt::format("{:+.{}f}", mean, digits) : fixed(mean, digits);
  if (!spread.half_width) return text;
  return text + " \u00b1 " + fixed(factor * *spread.half_width, digits);
}

std::string points(const Spread& spread, Sign sign) { return with_interval(spread, 100, 2, sign); }

Spread or_none(const std::optional<Spread>& spread) { return spread.value_or(Spread{}); }

std::vector<Head> heads_of(const Comparison& comparison) {
  std::vector<Head> out{{"", "configuration", true},
                        {"final", "accuracy, %", true},
                        {"median of last 5", "accuracies, %", false}};
  const bool several = comparison.groups.size() > 1;
  if (several) out.push_back({"accuracy, points,", "minus " + comparison.baseline, true});
  if (!comparison.target) return out;
  const std::string target = percent_target(*comparison.target);
  out.push_back({"epochs to", target, true});
  if (several) out.push_back({"epochs", "minus " + comparison.baseline, true});
  out.push_back({"seconds to", target, false});
  if (several) out.push_back({"seconds", "minus " + comparison.baseline, false});
  return out;
}

std::vector<Cell> row_of(const GroupSummary& group, const Comparison& comparison) {
  const bool several = comparison.groups.size() > 1;
  const PairedDifference difference = group.difference.value_or(PairedDifference{});
  std::vector<Cell> row{{group.name},
                        {points(group.final_accuracy, Sign::none)},
                        {points(group.median_accuracy, Sign::none)}};
  if (several) row.push_back({points(difference.final_accuracy, Sign::always)});
  if (!comparison.target) return row;
  row.push_back({with_interval(or_none(group.epochs), 1, 2, Sign::none)});
  if (several) row.push_back({with_interval(difference.epochs, 1, 2, Sign::always)});
  row.push_back({with_interval(or_none(group.seconds), 1, 2, Sign::none)});
  if (several) row.push_back({with_interval(difference.seconds, 1, 2, Sign::always)});
  return row;
}

}  // namespace

Table interval_table(const Comparison& comparison) {
  const bool repeated = std::ranges::any_of(
      comparison.groups, [](const GroupSummary& g) { return g.final_accuracy.count > 1; });
  if (!repeated) return {};
  Table out;
  out.heads = heads_of(comparison);
  for (const GroupSummary& group : comparison.groups) out.rows.push_back(row_of(group, comparison));
  return out;
}

}  // namespace dkfac::app
