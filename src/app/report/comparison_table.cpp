#include <algorithm>

#include <fmt/core.h>

#include "app/report/table.h"

namespace dkfac::app {
namespace {

using Group = const GroupSummary&;

std::string runs_text(Group group) {
  if (group.failed == 0) return fmt::format("{}", group.runs);
  return fmt::format("{}, {} failed", group.runs, group.failed);
}

}  // namespace

Table table_of(const Comparison& comparison, Dash dash) {
  Table out;
  const auto column = [&](Head head, const auto& read) {
    add_column(out, std::move(head), comparison.groups, read);
  };
  const auto contest = [&](Head head, Respect respect) {
    column(std::move(head), [&](Group g) { return value_text(respect, g.values[respect], dash); });
    for (const Standing& standing : comparison.standings)
      if (standing.respect == respect)
        for (const std::size_t group : standing.best()) out.rows[group].back().best = true;
  };
  column({"", "configuration"}, &GroupSummary::name);
  // "5 of 5" runs that reached the target include the number of runs.
  column({"", "runs", !comparison.target.any()}, runs_text);
  if (comparison.target.any()) {
    const std::string target = target_text(comparison.target);
    column({"reached", target}, [](Group g) { return fmt::format("{} of {}", g.reached, g.runs); });
    contest({"epochs to", target}, Respect::epochs);
    contest({"seconds to", target}, Respect::seconds);
  }
  if (comparison.has_accuracy()) {
    contest({"final", "accuracy, %"}, Respect::final_accuracy);
    column({"median of last 5", "accuracies, %", false},
           [&](Group g) { return value_text(Respect::final_accuracy, g.median_accuracy, dash); });
    contest({"best", "accuracy, %", false}, Respect::best_accuracy);
  } else {
    contest({"final", "test loss"}, Respect::final_loss);
    contest({"best", "test loss", false}, Respect::best_loss);
  }
  contest({"ms per", "step"}, Respect::step);
  column({"step", "ratio"},
         [](Group g) { return g.step_ratio > 0 ? fixed(g.step_ratio, 2) : "-"; });
  return out;
}

Table interval_table(const Comparison& comparison) {
  const bool repeated = std::ranges::any_of(comparison.groups, [](Group g) {
    return g.values[Respect::final_accuracy].count > 1 || g.values[Respect::final_loss].count > 1;
  });
  if (!repeated) return {};
  Table out;
  const auto column = [&](Head head, double factor, Respect respect) {
    add_column(out, std::move(head), comparison.groups,
               [&](Group g) { return with_interval(g.values[respect], factor, Sign::none); });
  };
  const auto difference = [&](Head head, double factor, Respect respect) {
    if (comparison.groups.size() < 2) return;
    head.bottom = "minus " + comparison.baseline;
    add_column(out, std::move(head), comparison.groups, [&](Group g) {
      return with_interval(g.difference.value_or(Spreads{})[respect], factor, Sign::always);
    });
  };
  add_column(out, {"", "configuration"}, comparison.groups, &GroupSummary::name);
  if (comparison.has_accuracy()) {
    column({"final", "accuracy, %"}, 100, Respect::final_accuracy);
    add_column(out, {"median of last 5", "accuracies, %", false}, comparison.groups,
               [](Group g) { return with_interval(g.median_accuracy, 100, Sign::none); });
    difference({"accuracy, points,", ""}, 100, Respect::final_accuracy);
  } else {
    column({"final", "test loss"}, 1, Respect::final_loss);
    difference({"test loss,", ""}, 1, Respect::final_loss);
  }
  if (!comparison.target.any()) return out;
  const std::string target = target_text(comparison.target);
  column({"epochs to", target}, 1, Respect::epochs);
  difference({"epochs", ""}, 1, Respect::epochs);
  column({"seconds to", target, false}, 1, Respect::seconds);
  difference({"seconds", "", false}, 1, Respect::seconds);
  return out;
}

std::string text_table(const Comparison& comparison) {
  std::string out = comparison.caption.empty() ? "" : comparison.caption + "\n\n";
  out += terminal_text(table_of(comparison, Dash::plain)) + "\n";
  const Table intervals = interval_table(comparison);
  if (!intervals.rows.empty())
    out += terminal_text(intervals) +
           "(mean \u00b1 95 % interval over seeds, differences by seed)\n\n";
  return out + verdict(comparison);
}

std::string markdown_table(const Comparison& comparison) {
  const Table intervals = interval_table(comparison);
  std::string out = markdown_text(table_of(comparison, Dash::en));
  if (!intervals.rows.empty()) out += "\n" + markdown_text(intervals) + "\n" + kIntervalNote + "\n";
  return out;
}

}  // namespace dkfac::app
