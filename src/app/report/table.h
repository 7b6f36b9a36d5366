#pragma once

#include <string>
#include <vector>

#include "app/report/format.h"
#include "app/shared/report.h"

namespace dkfac::app {

struct Cell {
  std::string text;
  bool best = false;
};
/// A head of one line or two. A terminal has no room for every column.
struct Head {
  std::string top, bottom;
  bool in_terminal = true;
  [[nodiscard]] std::string line() const { return top.empty() ? bottom : top + " " + bottom; }
};
/// The comparison as cells; the first column is the name of the group.
struct Table {
  std::vector<Head> heads;
  std::vector<std::vector<Cell>> rows;
};
/// For a terminal, and as Markdown.
[[nodiscard]] std::string terminal_text(const Table& table);
[[nodiscard]] std::string markdown_text(const Table& table);
[[nodiscard]] Table table_of(const Comparison& comparison, Dash dash);
/// Means over seeds with their 95 % intervals, and paired differences to the baseline with theirs.
/// Without rows when no group has two runs.
[[nodiscard]] Table interval_table(const Comparison& comparison);
inline constexpr const char* kIntervalNote =
    "Means \u00b1 half the width of their 95 % confidence interval (Student's t over seeds). "
    "Differences are taken seed by seed, since runs of one seed share initial weights and data "
    "order; an interval that holds 0 shows no difference.";

}  // namespace dkfac::app
