#include "app/report/table.h"

#include <algorithm>
#include <string_view>

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

}  // namespace dkfac::app
