#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/logging/number_text.h"
#include "app/shared/report.h"

namespace dkfac::app {

/// Character between the ends of a range: "-" for terminals, an en dash on paper.
enum class Dash { plain, en };

/// "1,234,567"
[[nodiscard]] std::string grouped(std::int64_t value);
/// Formats an accuracy in [0, 1] as a target: "90 %", "92.5 %".
[[nodiscard]] std::string percent_target(double accuracy);
/// Formats targets: "90 %", "top-5 93 %", "75 % and top-5 93 %", "loss 30"; empty without any.
[[nodiscard]] std::string target_text(const Targets& target);

/// Formats the mean, accuracies in percent and steps in milliseconds, and the range over seeds
/// where there is one: "4.3 [4-5]". "-" without values.
[[nodiscard]] std::string value_text(Respect respect, const Spread& spread, Dash dash);

enum class Sign { none, always };
/// Formats the mean times a factor and half the width of its interval, "91.20 \u00b1 0.35", or the
/// mean alone for one seed. "-" without values.
[[nodiscard]] std::string with_interval(const Spread& spread, double factor, Sign sign);

[[nodiscard]] std::string capitalized(std::string text);
/// "a", "a and b", "a, b and c"
[[nodiscard]] std::string join_names(const std::vector<std::string>& names);

}  // namespace dkfac::app
