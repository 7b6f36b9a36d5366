#pragma once

#include <cstdint>
#include <vector>

#include "app/shared/report.h"

namespace dkfac::app {

/// In what groups are compared.
enum class Respect : std::uint8_t { epochs, seconds, final_accuracy, best_accuracy, step };
/// What a group shows there; null where it has nothing to show.
[[nodiscard]] const Spread* spread_in(Respect respect, const GroupSummary& group);

struct Ranked {
  std::size_t group = 0;  ///< Index into Comparison::groups.
  std::size_t place = 0;  ///< 0 for the winners.
};
/// Groups that have something to show, best first. Those of which a larger share of the runs
/// qualifies stand before the others; places of equal standing follow each other as given.
[[nodiscard]] std::vector<Ranked> rank(const std::vector<GroupSummary>& groups, Respect respect);

}  // namespace dkfac::app
