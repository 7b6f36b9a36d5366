#include "kfac/optimizer/distributed_optimizer.h"

#include <cmath>
#include <utility>

#include "dkfac/core/ops.h"

#include "kfac/shared/host_visitor.h"
#include "kfac/shared/phase_timer.h"

namespace dkfac::kfac {
DistributedOptimizer::DistributedOptimizer(std::shared_ptr<comm::Communicator> comm,
                                           ExchangeSettings settings, Device device,
                                           ContextOptions context)
    : comm_(std::move(comm)), ctx_(device, context), settings_(settings), join_(device) {
  DKFAC_CHECK(comm_ != nullptr, "[optimizer] the communicator is null; comm::make_self() is one");
  DKFAC_CHECK(comm_->size() <= comm::kMaxBallots, "[optimizer] ", comm_->size(),
              " ranks; the vote is exact up to ", comm::kMaxBallots);
}

LayerId DistributedOptimizer::add_layer(std::string name, LayerSpec spec, LayerParams params) {
  DKFAC_CHECK(!prepared_, "[add_layer] layer '", name, "' comes after prepare()");
  add_parameters(layers_, std::move(name), std::move(spec), params, ctx_.device());
  on_add(layers_.back());
  return static_cast<LayerId>(layers_.size() - 1);
}

void DistributedOptimizer::prepare() {
  DKFAC_CHECK(!prepared_, "[prepare] was called before");
  comm::require_equal(
      *comm_,
      detail::concat("optimizer ", name(), '\n', options_text(), registration_text(layers_)),
      "the optimizer's layers and options");
  grid_ = comm::make_worker_grid(comm_, settings_.worker_fraction);
  comm::require_equal_arithmetic(grid_, ctx_,
                                 settings_.recipients == comm::Recipients::all
                                     ? comm::Repeated::updates
                                     : comm::Repeated::nothing);
  pipeline_.emplace(ctx_, grid_, settings_.overlap);
  broadcast_parameters(layers_, *comm_, ctx_.stream());
  on_prepare();
  nonfinite_ = Tensor::zeros(ctx_, {1});
  std::vector<comm::Slot> slots;
  const int count = static_cast<int>(layers_.size());
  for (int i = count - 1; i >= 0; --i)
    slots.push_back({owner_of(i), layers_[static_cast<std::size_t>(i)].numel(), 2 * count - 1 - i});
  gradients_.emplace(ctx_, grid_, "gradients", std::move(slots),
                     comm::ExchangeOptions{.recipients = settings_.recipients,
                                           .dtype = dtype(),
                                           .bucket_bytes = settings_.bucket_bytes,
                                           .tail = comm::kBallotElements,
                                           .wire = settings_.wire,
                                           .past_wire = nonfinite_});
  on_exchange();
  if (settings_.wire == DType::f16) magnitudes_.emplace(ctx_, Shape{count}, DType::f32);
  prepared_ = true;
  begin_step();
  ctx_.stream().synchronize();  // The caller's stream may read the parameters from here on.
}

void DistributedOptimizer::require_prepared(const char* operation) const {
  DKFAC_CHECK(prepared_, "[", operation, "] comes before prepare()");
}

DType DistributedOptimizer::dtype() const {
  return layers_.empty() ? DType::f32 : dtype_of_parameters(layers_.front());
}

void DistributedOptimizer::begin_step() {
  active_.clear();
  add_active(active_);
  gradients_->begin();
  active_.push_back(&*gradients_);
  pipeline_->begin(active_);
  ops::fill(ctx_, nonfinite_, 0);
}

TensorView DistributedOptimizer::gradient(int layer) {
  return gradients_->slot(static_cast<int>(layers_.size()) - 1 - layer);
}

void DistributedOptimizer::grads_ready(LayerId id, Stream stream, RecordScale scale) {
  require_prepared("grads_ready");
  const int layer = static_cast<int>(id), count = static_cast<int>(layers_.size());
  DKFAC_CHECK(layer >= 0 && layer < count, "[grads_ready] layer id ", layer,
              " does not exist; add_layer() returned 0 to ", count - 1);
  const ParameterLayer& parameters = layers_[static_cast<std::size_t>(layer)];
  DKFAC_CHECK(!gradients_->filled(count - 1 - layer), "[grads_ready] layer '", parameters.name,
              "' was announced twice in one step");
  const PhaseTimer timer(packing_seconds_, "exchange");
  enter("grads_ready", stream);
  const double factor = gradient_scale(settings_.loss_reduction, scale, comm_->size());
  pack_gradients(ctx_, parameters, factor, gradient(layer), nonfinite_);
  leave(stream);
  gradients_->mark_filled(count - 1 - layer);
  pipeline_->poll();
}

void DistributedOptimizer::complete_gradients(bool forgive) {
  for (int i = 0; i < gradients_->slots(); ++i) {
    if (gradients_->filled(i)) continue;
    const std::size_t layer = layers_.size() - 1 - static_cast<std::size_t>(i);
    DKFAC_CHECK(forgive, "[step] the gradients of layer '", layers_[layer].name,
                "' were not announced; call grads_ready() for every layer");
    ops::fill(ctx_, gradients_->slot(i), 0);
    gradients_->mark_filled(i);
  }
}

/// Of this step also where it does not pass: after an overflow the next one has to do better.
void DistributedOptimizer::agree_on_magnitudes() {
  if (!magnitudes_) return;
  ops::copy(ctx_, gradients_->largest(), magnitudes_->device());
  comm_->all_reduce(magnitudes_->device(), comm::ReduceOp::max, ctx_.stream(), "magnitudes");
  magnitudes_->fetch(ctx_);
}

/// Once the host has waited for what they agreed on.
void DistributedOptimizer::set_magnitudes() {
  if (!magnitudes_) return;
  for (int i = 0; i < gradients_->slots(); ++i)
    gradients_->set_magnitude(
        i, comm::exponent_of(static_cast<double>(magnitudes_->numbers<float>()[i])));
}

void DistributedOptimizer::visit_state(StateVisitor& caller) {
  require_prepared("visit_state");
  HostVisitor visitor(ctx_, caller);
  visitor.integer("steps", Held::same, steps_);
  if (magnitudes_) visitor.tensor("gradient_magnitudes", Held::same, magnitudes_->host());
  set_magnitudes();
  on_visit(visitor);
  packing_seconds_ = 0;
  begin_step();  // What is due may have changed.
}

void DistributedOptimizer::visit_velocity(StateVisitor& visitor, Held held,
                                          std::vector<Tensor>& velocity) {
  for (std::size_t i = 0; i < velocity.size(); ++i)
    if (velocity[i].is_set()) visitor.tensor(layers_[i].name + ".velocity", held, velocity[i]);
}

std::vector<NamedBytes> DistributedOptimizer::gradient_buffers() const {
  return {{"staging of gradients", static_cast<std::int64_t>(gradients_->staging_bytes())},
          {"wire of gradients", static_cast<std::int64_t>(gradients_->wire_bytes())}};
}

void DistributedOptimizer::on_failure(const comm::Outcome&) const {
  throw NumericError("[step] a rank reports a numerical failure");
}

StepReport DistributedOptimizer::step(const StepArgs& args, Stream stream) {
  require_prepared("step");
  DKFAC_CHECK(args.lr >= 0 && std::isfinite(args.lr), "[step] StepArgs::lr is ", args.lr,
              "; set it to the learning rate of the step, finite and >= 0");
  const double momentum = args.momentum.value_or(0);
  DKFAC_CHECK(momentum >= 0 && momentum < 1, "[step] the momentum is ", momentum,
              "; it must be in [0, 1)");
  comm::check_vote(args.vote, ctx_.device());
  enter("step", stream);
  StepReport report;
  report.step = ++steps_;
  std::uint64_t before = 0;
  {
    const PhaseTimer timer(report.seconds.exchange, "exchange");
    // A rank that votes against the step may have had no batch at all.
    const bool forgive = args.vote.loss_nonfinite || args.vote.data_error;
    comm::Ballot ballot{.caller = args.vote,
                        .hash = comm::mix_hash(comm::mix_hash(0, args.lr), momentum)};
    on_records(forgive);
    complete_gradients(forgive);
    pipeline_->flush();
    on_ballot(ballot);
    ballot.gradient_count = nonfinite_;
    pipeline_->submit(ballot);
    before = grid_.bytes();
    agree_on_magnitudes();
    on_submitted();
    const comm::Outcome outcome = pipeline_->outcome();
    if (outcome.result.numeric_failure > 0) on_failure(outcome);
    on_outcome(outcome, report);
    report.vote = outcome.result;
    report.bytes = pipeline_->bytes();
    set_magnitudes();
  }
  report.seconds.exchange += std::exchange(packing_seconds_, 0);
  report.updated = report.vote.may_update();
  if (report.updated) update(args, report);
  report.bytes += grid_.bytes() - before;
  report.scratch_growths = ctx_.scratch_growths();
  on_step_end(report);
  begin_step();
  leave(stream);
  return report;
}

}  // namespace dkfac::kfac
