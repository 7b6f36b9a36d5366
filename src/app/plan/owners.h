#pragma once

#include <vector>

#include "app/plan/collective.h"
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
  std::vector<kfac::SharedInversions> shared = {};  ///< Of K-FAC.
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
/// What a rank does to rebuild inverses.
struct RebuildWork {
  double seconds = 0;
  Transfer exchange = {};  ///< With the ranks that invert a factor together.
};
/// Of the inverses that are due, on the rank that takes longest, and of those that one step of the
/// adaptive rule rebuilds on average.
[[nodiscard]] RebuildWork rebuild_work(const Ownership& o, const Cluster& cluster, Rebuild due);
[[nodiscard]] RebuildWork adaptive_rebuild_work(const Ownership& o, const Cluster& cluster,
                                                double refreshed);
/// Seconds of the directions on the rank with the most.
[[nodiscard]] double direction_seconds(const Ownership& o, const Processor& processor);
/// Elements of parameters that the rank with the most updates.
[[nodiscard]] double updated_elements(const Network& network, const Ownership& o, int ranks);
/// Largest over mean of the counted work of a rank, at one rebuild a step, the mean that of factors
/// which one rank inverts; 1 without owners.
[[nodiscard]] double balance(const Ownership& o, int ranks);

}  // namespace dkfac::app::planning
