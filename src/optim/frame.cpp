#include "optim/frame.h"

#include <cmath>
#include <utility>

#include "dkfac/core/error.h"

namespace dkfac::optim {

OptimizerFrame::OptimizerFrame(std::shared_ptr<comm::Communicator> communicator, Device device,
                               ContextOptions context)
    : comm(std::move(communicator)), ctx(device, context), join(device) {
  DKFAC_CHECK(comm != nullptr, "[optimizer] the communicator is null; comm::make_self() is one");
  DKFAC_CHECK(comm->size() <= comm::kMaxFlagRanks, "[optimizer] ", comm->size(),
              " ranks; flags are counted exactly up to ", comm::kMaxFlagRanks);
}

DType OptimizerFrame::dtype() const {
  return layers.empty() ? DType::f32 : dtype_of_parameters(layers.front());
}

void OptimizerFrame::require_prepared(const char* operation) const {
  DKFAC_CHECK(prepared, "[", operation, "] comes before prepare()");
}

LayerId OptimizerFrame::add_layer(std::string name, LayerSpec spec, LayerParams params) {
  DKFAC_CHECK(!prepared, "[add_layer] layer '", name, "' comes after prepare()");
  add_parameters(layers, std::move(name), std::move(spec), params, ctx.device());
  return static_cast<LayerId>(layers.size() - 1);
}

int OptimizerFrame::checked(LayerId id, const char* operation) const {
  const int layer = static_cast<int>(id), count = static_cast<int>(layers.size());
  DKFAC_CHECK(layer >= 0 && layer < count, "[", operation, "] layer id ", layer,
              " does not exist; add_layer() returned 0 to ", count - 1);
  return layer;
}

std::vector<comm::Slot> OptimizerFrame::blocks(std::span<const int> owners) const {
  std::vector<comm::Slot> slots;
  for (std::size_t i = 0; i < layers.size(); ++i) slots.push_back({owners[i], layers[i].numel()});
  return slots;
}

void OptimizerFrame::agree(std::string_view optimizer, const std::string& options,
                           double grad_worker_fraction, comm::Repeated repeated) {
  DKFAC_CHECK(!prepared, "[prepare] was called before");
  comm::require_equal(
      *comm, detail::concat("optimizer ", optimizer, '\n', options, registration_text(layers)),
      "the optimizer's layers and options");
  grid = comm::make_worker_grid(comm, grad_worker_fraction);
  comm::require_equal_arithmetic(grid, ctx, repeated);
  broadcast_parameters(layers, *comm, ctx.stream());
}

void enter_step(OptimizerFrame& frame, const StepArgs& args, Stream caller) {
  frame.require_prepared("step");
  DKFAC_CHECK(args.lr >= 0 && std::isfinite(args.lr), "[step] StepArgs::lr is ", args.lr,
              "; set it to the learning rate of the step, finite and >= 0");
  const double momentum = args.momentum.value_or(0);
  DKFAC_CHECK(momentum >= 0 && momentum < 1, "[step] the momentum is ", momentum,
              "; it must be in [0, 1)");
  comm::check_flags(args.flags, frame.ctx.device());
  frame.join.enter("step", caller, frame.ctx.stream());
}

comm::FlagMessage flags_of(const StepArgs& args) {
  constexpr double kOfTheOptions = -1;  // Differs from every momentum.
  return {
      .caller = args.flags,
      .hash = comm::mix_hash(comm::mix_hash(0, args.lr), args.momentum.value_or(kOfTheOptions))};
}

}  // namespace dkfac::optim
