#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dkfac {

/// Escapes text from files, names or variables for messages. Control characters and bytes that are
/// not UTF-8 become \x1b etc.; other UTF-8 letters stay. Text of more than `longest` bytes is
/// truncated there with its length appended: "abc... (70000 bytes)".
[[nodiscard]] std::string printable(std::string_view text, std::size_t longest = 80);

/// Returns text whose bytes that are not UTF-8 become \xe9 etc., e.g. for JSON. Control characters
/// stay.
[[nodiscard]] std::string as_utf8(std::string_view text);

/// Quotes a word for a command line that is shown: in a POSIX shell it gives the same word again,
/// with control characters and bytes that are not UTF-8 in bash.
[[nodiscard]] std::string shell_word(std::string_view word);

}  // namespace dkfac
