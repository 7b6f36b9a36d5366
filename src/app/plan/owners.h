#pragma once

#include <vector>

#include "app/plan/network.h"
#include "app/plan/strategy.h"
#include "kfac/shared/curvature_work.h"

/// What each rank does after the sums of a step: the work of owners.
namespace dkfac::app::planning {

/// Ranks and work of every layer of a network, for one strategy.
struct Ownership {
  kfac::CurvatureOptions options;  ///< with_block_width()
  std::vector<kfac::CurvatureWork> work = {};
  std::vector<kfac::LayerOwners> owners = {};
  std::vector<double> direction = {};  ///< FLOP of the direction of each layer, at its owner.
  std::vector<int> offsets = {};       ///< With stagger_inverses.
  int workers = 1, columns = 1;
  bool owned = false;  ///< Whether owners update; else every rank does.
  /// Whether a statistic is of the samples of the rank that averages it, of so many ranks.
  [[nodiscard]] bool has_local_statistics(int ranks) const {
    return options.distribution.local_statistics && ranks > 1;
  }
};
[[nodiscard]] Ownership ownership_of(const Network& network, const Strategy& strategy, int ranks,
                                     bool device);

/// Which layers are due for a rebuild: none, all, or those with one offset.
struct Rebuild {
  bool any = false;
  int offset = -1;  ///< -1: all.
};
/// Seconds of rebuilding the inverses that are due on the rank with the most, and of those that one
/// step of the adaptive rule rebuilds on average.
[[nodiscard]] double rebuild_seconds(const Ownership& o, int ranks, const Processor& processor,
                                     Rebuild due);
[[nodiscard]] double adaptive_rebuild_seconds(const Ownership& o, int ranks,
                                              const Processor& processor, double refreshed);
/// Seconds of the directions on the rank with the most.
[[nodiscard]] double direction_seconds(const Ownership& o, const Processor& processor);
/// Elements of parameters that the rank with the most updates.
[[nodiscard]] double updated_elements(const Network& network, const Ownership& o, int ranks);
/// Largest over mean of the counted work of a rank, at one rebuild a step; 1 without owners.
[[nodiscard]] double balance(const Ownership& o, int ranks);

}  // namespace dkfac::app::planning
