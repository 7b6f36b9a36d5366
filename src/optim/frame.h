#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/context.h"
#include "dkfac/optim/optimizer.h"

#include "comm/collective/flag_message.h"
#include "comm/collective/stream_join.h"
#include "comm/collective/worker_grid.h"
#include "optim/parameters.h"

/// What Sgd, Lars and Kfac stand on, and how each of their steps begins.
namespace dkfac::optim {

struct OptimizerFrame {
  /// Throws InvalidArgument without a communicator, or for too many ranks.
  OptimizerFrame(std::shared_ptr<comm::Communicator> communicator, Device device,
                 ContextOptions context);

  std::shared_ptr<comm::Communicator> comm;
  comm::WorkerGrid grid;  ///< From prepare() on.
  Context ctx;
  std::vector<ParameterLayer> layers;
  comm::StreamJoin join;
  bool prepared = false;
  std::int64_t steps = 0;

  [[nodiscard]] DType dtype() const;  ///< Of parameters and gradients.
  void require_prepared(const char* operation) const;
  [[nodiscard]] LayerId add_layer(std::string name, LayerSpec spec, LayerParams params);
  /// The index of a layer that exists.
  [[nodiscard]] int checked(LayerId id, const char* operation) const;
  /// How prepare() begins: all ranks have the same layers and options (everything that must be
  /// equal, one per line), the parameters of rank 0, and arithmetic that gives the same bits where
  /// several compute them. Collective.
  void agree(std::string_view optimizer, const std::string& options, double grad_worker_fraction,
             comm::Repeated repeated);
};

/// Checks the arguments, lets our work follow the caller's stream, and counts the step.
void enter_step(OptimizerFrame& frame, const StepArgs& args, Stream caller, UpdateReport& report);
/// What a step's arguments have to say to all ranks.
[[nodiscard]] comm::FlagMessage flags_of(const StepArgs& args);

}  // namespace dkfac::optim
