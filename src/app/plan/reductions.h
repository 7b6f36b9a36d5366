#pragma once

#include <vector>

#include "app/plan/owners.h"

/// The collectives of a step, in the order in which the code launches them.
namespace dkfac::app::planning {

/// A bucket of statistics or gradients.
struct Reduction {
  bool statistics = false;
  int time = 0;        ///< Position of its last block: layers forward, then backward.
  double bytes = 0;    ///< Of the whole buffer.
  double largest = 0;  ///< Of the segment of one rank, or column.
};
/// statistics: whether they are due. Bytes are those of StepReport::bytes, but for the flags of
/// steps with 16-bit wires.
[[nodiscard]] std::vector<Reduction> reductions(const Network& network, const Ownership& o,
                                                int ranks, bool statistics);

/// Bytes of what travels after the sums.
struct Gathers {
  double inverses = 0, largest_inverses = 0;  ///< Within the columns, after a rebuild.
  double message = 0;                         ///< With split factors, of the busiest rank.
  double weights = 0, largest_weights = 0;    ///< Within rows.
};
[[nodiscard]] Gathers gathers(const Network& network, const Ownership& o, int ranks);

}  // namespace dkfac::app::planning
