#include "core/shared/printable.h"

#include <algorithm>
#include <cstdint>

namespace dkfac {

namespace {

constexpr std::string_view kHex = "0123456789abcdef";

std::uint32_t byte_at(std::string_view text, std::size_t i) {
  return static_cast<unsigned char>(text[i]);
}

std::string escaped_byte(std::string_view text) {
  return {'\\', 'x', kHex[byte_at(text, 0) >> 4], kHex[byte_at(text, 0) & 0xfU]};
}

/// Bytes of the first character of `text`; 0 if it is not printable UTF-8.
std::size_t letter_bytes(std::string_view text) {
  const std::uint32_t first = byte_at(text, 0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const std::size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || bytes > text.size()) return 0;
  std::uint32_t letter = first & (0x7fU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte_at(text, i) & 0xc0U) != 0x80) return 0;
    letter = letter << 6 | (byte_at(text, i) & 0x3fU);
  }
  // Overlong encodings, surrogates, values beyond Unicode, control characters.
  const bool other = (bytes == 3 && letter < 0x800) || (bytes == 4 && letter < 0x10000) ||
                     (letter >= 0xd800 && letter < 0xe000) || letter > 0x10ffff || letter < 0xa0;
  return other ? 0 : bytes;
}

}  // namespace

std::string printable(std::string_view text, std::size_t longest) {
  std::string out;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t bytes = letter_bytes(text.substr(at));
    const std::size_t taken = std::max<std::size_t>(bytes, 1);
    if (at + taken > longest) return out + "... (" + std::to_string(text.size()) + " bytes)";
    if (bytes > 0)
      out += text.substr(at, bytes);
    else
      out += escaped_byte(text.substr(at));
    at += taken;
  }
  return out;
}

std::string as_utf8(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    // U+0080 to U+009F are letters of UTF-8, if not printable ones.
    const bool control =
        byte_at(text, 0) < 0x80 || (byte_at(text, 0) == 0xc2 && text.size() > 1 &&
                                    byte_at(text, 1) >= 0x80 && byte_at(text, 1) < 0xa0);
    const std::size_t bytes = control ? (byte_at(text, 0) < 0x80 ? 1 : 2) : letter_bytes(text);
    out += bytes > 0 ? std::string(text.substr(0, bytes)) : escaped_byte(text);
    text.remove_prefix(std::max<std::size_t>(bytes, 1));
  }
  return out;
}

std::string shell_word(std::string_view word) {
  const bool plain = !word.empty() && word.find_first_not_of(
                                          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                          "0123456789_-./=:,+@%") == std::string_view::npos;
  if (plain) return std::string(word);
  const bool shown = printable(word, word.size()) == word;
  std::string out = shown ? "'" : "$'";
  for (; !word.empty();) {
    const std::size_t bytes = letter_bytes(word);
    if (word.front() == '\'')
      out += shown ? "'\\''" : "\\'";
    else if (word.front() == '\\' && !shown)
      out += "\\\\";
    else
      out += bytes > 0 ? std::string(word.substr(0, bytes)) : escaped_byte(word);
    word.remove_prefix(std::max<std::size_t>(bytes, 1));
  }
  return out + "'";
}

}  // namespace dkfac
