#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "app/shared/report.h"

namespace dkfac::app {

/// Where a group stands in one respect; groups without a value do not take part.
struct Standing {
  double share = 0;  ///< Of the runs that qualify; a larger share stands first.
  double value = 0;
};
using Judge = std::function<std::optional<Standing>(const GroupSummary&)>;

/// Groups that take part, best first; places of equal standing follow each other as given.
struct Ranked {
  std::size_t group = 0;  ///< Index into Comparison::groups.
  std::size_t place = 0;  ///< 0 for the winners.
};
enum class Better { less, more };
[[nodiscard]] std::vector<Ranked> rank(const std::vector<GroupSummary>& groups, Better better,
                                       const Judge& judge);

// The respects in which groups are compared.
[[nodiscard]] std::vector<Ranked> rank_epochs(const std::vector<GroupSummary>& groups);
[[nodiscard]] std::vector<Ranked> rank_seconds(const std::vector<GroupSummary>& groups);
[[nodiscard]] std::vector<Ranked> rank_final(const std::vector<GroupSummary>& groups);
[[nodiscard]] std::vector<Ranked> rank_best(const std::vector<GroupSummary>& groups);
[[nodiscard]] std::vector<Ranked> rank_step(const std::vector<GroupSummary>& groups);

}  // namespace dkfac::app
