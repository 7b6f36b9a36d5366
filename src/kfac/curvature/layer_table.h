#pragma once

#include <memory>
#include <vector>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/context.h"
#include "dkfac/kfac/options.h"

#include "comm/collective/worker_grid.h"
#include "core/shared/index.h"
#include "kfac/curvature/block.h"
#include "kfac/curvature/statistic.h"
#include "kfac/schedule/refresh_schedule.h"
#include "kfac/schedule/step_meter.h"

namespace dkfac::kfac {

/// The layers, their statistics, and when each is refreshed: the state that Curvature owns, and
/// that Recorder and Rebuilds work on.
struct LayerTable {
  LayerTable(Context& context, std::shared_ptr<comm::Communicator> communicator,
             CurvatureOptions curvature_options);

  Context& ctx;
  std::shared_ptr<comm::Communicator> comm;
  comm::WorkerGrid grid;  ///< Set by Curvature::prepare(), as what follows.
  CurvatureOptions options;
  std::vector<std::unique_ptr<CurvatureBlock>>
      blocks;  ///< Added before; then their owners are set.
  std::vector<Statistic> statistics;
  RefreshSchedule schedule;
  StepMeter meter;  ///< Of the steps on this rank.

  [[nodiscard]] int layers() const { return static_cast<int>(blocks.size()); }
  [[nodiscard]] CurvatureBlock& layer(int index) { return *blocks[index_of(index)]; }
  [[nodiscard]] const CurvatureBlock& layer(int index) const { return *blocks[index_of(index)]; }
  /// Returns the index of a layer; throws InvalidArgument if it does not exist.
  [[nodiscard]] int checked(LayerId id, const char* operation) const;
  /// Whether this rank preconditions the layer.
  [[nodiscard]] bool is_worker_of(int index) const {
    return grid.is_worker_of(layer(index).owners.layer);
  }
  [[nodiscard]] bool owns(int index) const { return layer(index).owners.layer == comm->rank(); }
  /// What this rank does for the layer.
  [[nodiscard]] LayerShare share_of(int index) const;
  /// The rank of the layer's workers that has a new inverse first: the one that has built it, or
  /// the owner, to which it is sent.
  [[nodiscard]] int holder(const Statistic& s) const;
  /// Whether this step's gradients are projected on the eigenvectors of the layer; equal on all
  /// ranks.
  [[nodiscard]] bool scales_due(int index) const;

  [[nodiscard]] StatisticId ids() const { return static_cast<StatisticId>(statistics.size()); }
  [[nodiscard]] Statistic& statistic(StatisticId id) { return statistics[index_of(id)]; }
  [[nodiscard]] const Statistic& statistic(StatisticId id) const {
    return statistics[index_of(id)];
  }
  [[nodiscard]] bool averaged_here(StatisticId id) const {
    return statistic(id).owner == comm->rank();
  }
  /// Whether a statistic is due; false for kNoStatistic.
  [[nodiscard]] bool due(StatisticId id) const { return id >= 0 && schedule.due(id); }
  /// Whether statistics are of the samples of the ranks that average them.
  [[nodiscard]] bool has_local_statistics() const {
    return options.distribution.local_statistics && comm->size() > 1;
  }
  /// The samples that a statistic of a step with so many on all ranks is the mean of.
  [[nodiscard]] double batch_of_statistics(double global) const {
    return has_local_statistics() ? global / comm->size() : global;
  }
  /// Whether records of this rank enter a statistic in this step.
  [[nodiscard]] bool recorded_here(StatisticId id) const {
    return due(id) && (!has_local_statistics() || averaged_here(id));
  }
  [[nodiscard]] bool rebuild_due(StatisticId id) const {
    return id >= 0 && (statistic(id).foreign || schedule.rebuild_due(id));
  }
  /// Whether this rank rebuilds an inverse in this step.
  [[nodiscard]] bool rebuilds(StatisticId id) const { return rebuild_due(id) && averaged_here(id); }
};

/// Makes the statistics of all layers and their schedule, once the layers have owners.
void plan_statistics(LayerTable& table);

}  // namespace dkfac::kfac
