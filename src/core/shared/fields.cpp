#include "core/shared/fields.h"

#include <charconv>
#include <cmath>

#include "dkfac/core/error.h"

#include "core/shared/registration.h"

namespace dkfac {

namespace {

/// Returns the shortest text that parses to the same number.
std::string shortest(double x) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, x).ptr};
}

}  // namespace

std::string to_string(const Range& range) {
  constexpr double kNoBound = 9007199254740992.0;  // 2^53: the largest integer of a file.
  if (range.high >= kNoBound)
    return detail::concat(range.open_low ? "> " : ">= ", shortest(range.low));
  return detail::concat("in ", range.open_low ? '(' : '[', shortest(range.low), ", ",
                        shortest(range.high), range.open_high ? ')' : ']');
}

void FieldChecks::check_number(double value, const FieldInfo& info) const {
  DKFAC_CHECK(std::isfinite(value) && info.range.contains(value), '[', options_, "] ", info.name,
              " is ", value, "; it must be ", std::isfinite(info.range.high) ? "" : "finite and ",
              to_string(info.range));
}

void FieldChecks::refuse_choice(const FieldInfo& info, const std::string& value,
                                const std::string& names) const {
  throw InvalidArgument(
      detail::concat('[', options_, "] ", info.name, " is ", value, "; it must be one of ", names));
}

void FieldText::add(const FieldInfo& info, double value) { add(info, exact(value)); }

void FieldText::add(const FieldInfo& info, std::string_view value) {
  if (info.agreed) text_ += detail::concat(info.name, ' ', value, '\n');
}

}  // namespace dkfac
