#include "app/report/table.h"

#include <algorithm>

#include <fmt/core.h>

namespace dkfac::app {
namespace {

bool among(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

/// Characters, as a terminal counts them: continuation bytes of UTF-8 take no room.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string runs_text(const GroupSummary& group) {
  if (group.failed == 0) return fmt::format("{}", group.runs);
  return fmt::format("{}, {} failed", group.runs, group.failed);
}

/// A star marks what is best; a table of one line has nothing to mark.
std::string starred(const Cell& cell) { return cell.best ? cell.text + " *" : cell.text; }

std::vector<Head> heads_of(std::optional<double> target) {
  // "5 of 5" reached tells the number of runs as well.
  std::vector<Head> out{{"", "configuration", true}, {"", "runs", !target}};
  if (target) {
    for (const char* what : {"reached", "epochs to", "seconds to"}) {
      out.push_back({what, percent_target(*target), true});
    }
  }
  out.push_back({"final", "accuracy, %", true});
  out.push_back({"median of last 5", "accuracies, %", false});
  out.push_back({"best", "accuracy, %", false});
  out.push_back({"ms per", "step", true});
  out.push_back({"step", "ratio", true});
  return out;
}

std::string pad(std::string text, std::size_t width, bool left) {
  const std::string spaces(width - std::min(width, width_of(text)), ' ');
  return left ? text + spaces : spaces + text;
}

}  // namespace

Table table_of(const Comparison& comparison, Dash dash) {
  Table out;
  out.heads = heads_of(comparison.target);
  const bool contest = comparison.groups.size() > 1;
  for (const GroupSummary& group : comparison.groups) {
    std::vector<Cell> row{{group.name}, {runs_text(group)}};
    const auto add = [&](const std::string& text, const std::vector<std::string>& winners) {
      row.push_back({text, contest && among(winners, group.name)});
    };
    if (comparison.target) {
      row.push_back({fmt::format("{} of {}", group.reached, group.runs)});
      add(epochs_text(group.epochs.value_or(Spread{}), dash), comparison.fewest_epochs);
      add(seconds_text(group.seconds.value_or(Spread{}), dash), comparison.fewest_seconds);
    }
    add(percent_text(group.final_accuracy, dash), comparison.highest_final);
    row.push_back({percent_text(group.median_accuracy, dash)});
    add(percent_text(group.best_accuracy, dash), comparison.highest_best);
    add(milliseconds_text(group.seconds_per_step, dash), comparison.cheapest_step);
    row.push_back({group.step_ratio > 0 ? fixed(group.step_ratio, 2) : "-"});
    out.rows.push_back(std::move(row));
  }
  return out;
}

std::string terminal_text(const Table& table) {
  std::vector<std::size_t> columns, widths;
  for (std::size_t c = 0; c < table.heads.size(); ++c) {
    const Head& head = table.heads[c];
    std::size_t width = std::max(width_of(head.top), width_of(head.bottom));
    for (const auto& row : table.rows) width = std::max(width, width_of(starred(row[c])));
    widths.push_back(width);
    if (head.in_terminal) columns.push_back(c);
  }
  std::string out;
  const auto line = [&](const auto& text_of) {
    std::string text;
    for (const std::size_t c : columns) {
      text += (c > 0 ? "  " : "") + pad(text_of(c), widths[c], c == 0);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  };
  line([&](std::size_t c) { return table.heads[c].top; });
  line([&](std::size_t c) { return table.heads[c].bottom; });
  line([&](std::size_t c) { return std::string(widths[c], '-'); });
  for (const auto& row : table.rows) {
    line([&](std::size_t c) { return starred(row[c]); });
  }
  return out;
}

std::string markdown_text(const Table& table) {
  const auto cell_text = [](const std::string& text) {
    std::string out;
    for (const char c : text) {
      if (c == '|') out += '\\';
      out += c == '\n' ? ' ' : c;
    }
    return out;
  };
  std::string out = "|";
  for (const Head& head : table.heads) out += " " + cell_text(head.line()) + " |";
  out += "\n|";
  for (std::size_t c = 0; c < table.heads.size(); ++c) out += c == 0 ? "---|" : "---:|";
  for (const auto& row : table.rows) {
    out += "\n|";
    for (const Cell& cell : row) {
      const std::string text = cell_text(cell.text);
      out += cell.best ? " **" + text + "** |" : " " + text + " |";
    }
  }
  return out + "\n";
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
