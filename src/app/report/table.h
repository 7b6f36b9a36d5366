#pragma once

#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "app/report/format.h"
#include "app/shared/report.h"

namespace dkfac::app {

struct Cell {
  std::string text;
  bool best = false;
};
/// A head of one line or two. Some columns are left out in a terminal.
struct Head {
  std::string top, bottom;
  bool in_terminal = true;
  [[nodiscard]] std::string line() const { return top.empty() ? bottom : top + " " + bottom; }
};
/// A table whose first column names the rows.
struct Table {
  std::vector<Head> heads;
  std::vector<std::vector<Cell>> rows;
};
/// Adds a column: its head, and the result of `read`, text or a Cell, for the item of each row.
/// `read` may also be a pointer to a member.
template <class Items, class Read>
void add_column(Table& table, Head head, const Items& items, const Read& read) {
  table.heads.push_back(std::move(head));
  table.rows.resize(std::size(items));
  auto row = table.rows.begin();
  for (const auto& item : items) (row++)->push_back(Cell{std::invoke(read, item)});
}

/// Formats a table for a terminal, and as Markdown.
[[nodiscard]] std::string terminal_text(const Table& table);
[[nodiscard]] std::string markdown_text(const Table& table);

[[nodiscard]] Table table_of(const Comparison& comparison, Dash dash);
/// Makes a table of means over seeds with their 95 % intervals, and of paired differences to the
/// baseline with theirs. Without rows when no group has two runs.
[[nodiscard]] Table interval_table(const Comparison& comparison);
inline constexpr const char* kIntervalNote =
    "Means \u00b1 half the width of their 95 % confidence interval (Student's t over seeds). "
    "Differences are taken seed by seed, since runs of one seed share initial weights and data "
    "order; an interval that holds 0 shows no difference.";

}  // namespace dkfac::app
