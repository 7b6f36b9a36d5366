#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dkfac {

/// Escapes text from files, names or variables for messages. Control characters and bytes that are
/// not UTF-8 become \x1b etc.; other UTF-8 letters stay. Text of more than `longest` bytes is
/// truncated there with its length appended: "abc... (70000 bytes)".
[[nodiscard]] std::string printable(std::string_view text, std::size_t longest = 80);

}  // namespace dkfac
