#include "app/report/table.h"

#include <algorithm>

#include <fmt/core.h>

#include "app/report/palette.h"

namespace dkfac::app {
namespace {

/// Number of characters in a terminal: continuation bytes of UTF-8 have no width.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string starred(const Cell& cell) { return cell.best ? cell.text + " *" : cell.text; }

std::string pad(std::string text, std::size_t width, bool left) {
  const std::string spaces(width - std::min(width, width_of(text)), ' ');
  return left ? text + spaces : spaces + text;
}

/// Puts a mean and its range on two lines, without breaking either.
std::string in_two_lines(const std::string& text) {
  const auto unparted = [](std::string_view part) {
    return "<span class=\"whole\">" + escape(part) + "</span>";
  };
  const auto range = text.find(" [");
  if (range == std::string::npos) return unparted(text);
  return "<span>" + unparted(text.substr(0, range)) + " " + unparted(text.substr(range + 1)) +
         "</span>";
}

std::string html_cell(const Cell& cell, const Head& head, Look look) {
  if (look == Look::code) return "<td><code>" + escape(cell.text) + "</code></td>";
  if (look == Look::scrolls) return "<td>" + escape(cell.text) + "</td>";
  return fmt::format("<td data-head=\"{}\"{}>{}</td>", escape(head.line()),
                     cell.best ? " class=\"best\"" : "", in_two_lines(cell.text));
}

}  // namespace

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
    for (const std::size_t c : columns)
      text += (c > 0 ? "  " : "") + pad(text_of(c), widths[c], c == 0);
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  };
  line([&](std::size_t c) { return table.heads[c].top; });
  line([&](std::size_t c) { return table.heads[c].bottom; });
  line([&](std::size_t c) { return std::string(widths[c], '-'); });
  for (const auto& row : table.rows) line([&](std::size_t c) { return starred(row[c]); });
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

std::string html_table(const Table& table, Look look) {
  if (table.rows.empty()) return {};
  constexpr const char* kClasses[] = {"", " class=\"main\"", " class=\"settings\""};
  std::string out = fmt::format("<div class=\"wide\"><table{}><thead><tr>",
                                kClasses[static_cast<std::size_t>(look)]);
  for (const Head& head : table.heads)
    out += "<th scope=\"col\">" + with_units(escape(head.line())) + "</th>";
  out += "</tr></thead>\n<tbody>\n";
  for (const auto& row : table.rows) {
    const Cell& name = row.front();
    const std::string text = escape(name.text);
    out += fmt::format("<tr><th scope=\"row\">{}{}</th>", name.style ? swatch(*name.style) : "",
                       look == Look::code ? "<code>" + text + "</code>" : text);
    for (std::size_t c = 1; c < row.size(); ++c) out += html_cell(row[c], table.heads[c], look);
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

}  // namespace dkfac::app
