#pragma once

#include "app/shared/report.h"

namespace dkfac::app {

/// Returns the value of a run; NaN where it has none, as of a run that failed.
[[nodiscard]] double value_in(Respect respect, const RunResult& run, const Targets& target);

/// Returns the differences between runs of one seed, over the seeds with which both groups have a
/// value.
[[nodiscard]] Spread paired_difference(Respect respect, const RunGroup& group,
                                       const RunGroup& other, const Targets& target);
/// Ranks the groups, of which `summaries` has the values, and decides which differences are shown.
[[nodiscard]] Standing standing_of(Respect respect, std::span<const RunGroup> groups,
                                   const std::vector<GroupSummary>& summaries,
                                   const Targets& target);

}  // namespace dkfac::app
