#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dkfac {

/// What a file, a name or a variable holds, as a message may show it: control characters and bytes
/// that are no UTF-8 as \x1b, and what has more than `longest` bytes cut there, with its length:
/// "abc... (70000 bytes)". Other languages' letters stay.
[[nodiscard]] std::string printable(std::string_view text, std::size_t longest = 80);

}  // namespace dkfac
