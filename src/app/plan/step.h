#pragma once

#include <vector>

#include "app/plan/collective.h"
#include "app/plan/owners.h"
#include "app/plan/reductions.h"
#include "app/plan/timeline.h"

/// The tasks of one step of a rank, as training issues them.
namespace dkfac::app::planning {

struct Step {
  const Network& network;
  const Cluster& cluster;
  const Ownership& ownership;
  int states = 1;            ///< Of the optimizer, per parameter.
  bool kfac = false;         ///< Whether its update is K-FAC's.
  double statistics = 0;     ///< Part of the statistics that is refreshed.
  RebuildWork rebuild = {};  ///< Of the busiest rank.
  double rebuilt = 0;        ///< Part of the inverses that travel.
  int micro_batches = 1;     ///< Passes of a rank.
};

struct StepTasks {
  std::vector<Task> tasks;
  Transfer sent;     ///< Of all collectives together.
  double links = 0;  ///< Seconds of these collectives.
};
[[nodiscard]] StepTasks tasks_of(const Step& step);

}  // namespace dkfac::app::planning
