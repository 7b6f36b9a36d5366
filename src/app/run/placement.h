#pragma once

#include <memory>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/device.h"

#include "app/shared/config.h"
#include "app/shared/errors.h"
#include "app/shared/trainer.h"

namespace dkfac::app {

/// Where a rank computes, and what carries memory of there and of the host between ranks.
struct DevicePlacement {
  Device device;
  std::shared_ptr<comm::Communicator> comm;
  int ranks_on_device = 1;  ///< How many ranks have this one's GPU, itself included; 1 on the host.
};

/// Collective: the place of this rank under run.device. With "cuda" the ranks of a machine take the
/// GPUs that they see in turn; threads of one process may share one, processes have one each,
/// whatever number their launcher gives it. With "cuda:1" each takes that one, shared or not. Only
/// `comm` of the result may be used from then on. Throws RunError on every rank when one of them
/// has no CUDA, no such device, or none for itself.
[[nodiscard]] DevicePlacement find_placement(const Config& config,
                                             std::shared_ptr<comm::Communicator> host,
                                             Position& position);

/// train() (app/shared/trainer.h) for a rank whose place has been found.
void train_at(DevicePlacement place, const Config& config, const PhaseData& data,
              const TrainHooks& hooks, RunState& run, const CheckpointPlan& checkpoints);

}  // namespace dkfac::app
