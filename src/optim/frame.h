#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/context.h"
#include "dkfac/optim/optimizer.h"

#include "comm/collective/bucketed_reduce.h"
#include "comm/collective/flag_message.h"
#include "comm/collective/stream_join.h"
#include "comm/collective/worker_grid.h"
#include "optim/parameters.h"

/// State and steps that all optimizers share.
namespace dkfac::optim {

struct OptimizerFrame {
  /// Throws InvalidArgument without a communicator, or for too many ranks.
  OptimizerFrame(std::shared_ptr<comm::Communicator> communicator, Device device,
                 ContextOptions context);

  std::shared_ptr<comm::Communicator> comm;
  comm::WorkerGrid grid;  ///< Set by prepare().
  Context ctx;
  std::vector<ParameterLayer> layers;
  comm::StreamJoin join;
  bool prepared = false;

  [[nodiscard]] DType dtype() const;  ///< Of parameters and gradients.
  void require_prepared(const char* operation) const;
  [[nodiscard]] LayerId add_layer(std::string name, LayerSpec spec, LayerParams params);
  /// Returns the index of a layer; throws InvalidArgument if it does not exist.
  [[nodiscard]] int checked(LayerId id, const char* operation) const;
  /// The parameters of all layers as blocks of an all-gather. owners: of each layer.
  [[nodiscard]] std::vector<comm::Slot> blocks(std::span<const int> owners) const;
  /// First part of prepare(); collective. Checks that layers and options (`options`: everything
  /// that must be equal, one per line) agree between ranks, and that ranks which repeat a
  /// computation get bitwise identical results. Broadcasts the parameters of rank 0.
  void agree(std::string_view optimizer, const std::string& options, double grad_worker_fraction,
             comm::Repeated repeated);
};

/// Begins a step: checks the arguments, and orders later work after the caller's stream.
void enter_step(OptimizerFrame& frame, const StepArgs& args, Stream caller);
/// The step's flags of this rank from its arguments.
[[nodiscard]] comm::FlagMessage flags_of(const StepArgs& args);

}  // namespace dkfac::optim
