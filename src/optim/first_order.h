#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dkfac/core/ops.h"
#include "dkfac/core/tensor.h"

#include "comm/collective/step_pipeline.h"
#include "core/shared/activity_timer.h"
#include "core/shared/host_visitor.h"
#include "optim/frame.h"
#include "optim/gradients.h"
#include "optim/owned_layers.h"
#include "optim/shared/fields.h"
#include "optim/updates.h"

namespace dkfac::optim {

/// Checks the options; throws InvalidArgument for a field out of range, and for wire types of data
/// that only K-FAC sends.
template <class Options>
void check_first_order(std::string_view name, const Options& options) {
  for_each_field(options, FieldChecks(name));
  DKFAC_CHECK(!options.communication.statistics_wire && !options.communication.weight_wire, '[',
              name,
              "] communication.statistics_wire and weight_wire are for K-FAC, which alone sends "
              "statistics, and weights in another type than their own; leave them unset");
}

/// An optimizer without curvature: gradients are all-reduced, and every rank updates all
/// parameters; with a MatrixRule the owner of a layer does (owned_layers.h). A Rule has
/// - `options`, with loss_reduction and communication;
/// - kName, and kStates: names of the state tensors of a parameter, each of the parameter's size;
/// - description(), a text for users;
/// - double update(Context&, UpdateTable&, const StepArgs&), which updates all parameters with
///   their averaged gradients and returns the momentum to report;
/// - void visit_state(StateVisitor&), for state that is not of a parameter's size.
template <class Rule>
class FirstOrder final : public Optimizer {
 public:
  FirstOrder(std::shared_ptr<comm::Communicator> comm, Rule rule, Device device,
             ContextOptions context)
      : frame_(std::move(comm), device, context), rule_(std::move(rule)) {}

  [[nodiscard]] std::string_view name() const override { return Rule::kName; }
  [[nodiscard]] std::string describe() const override {
    return detail::concat(Rule::kName, ": ", rule_.description());
  }
  [[nodiscard]] LayerId add_layer(std::string name, LayerSpec spec, LayerParams params) override {
    return frame_.add_layer(std::move(name), std::move(spec), params);
  }
  void prepare() override;
  void grads_ready(LayerId layer, Stream stream, RecordScale scale) override {
    frame_.require_prepared("grads_ready");
    gradients_->announce(layer, stream, scale);
    pipeline_->poll();
  }
  void all_grads_ready(std::span<const LayerId> layers, Stream stream, RecordScale scale) override {
    frame_.require_prepared("grads_ready");
    gradients_->announce(layers, stream, scale);
    pipeline_->poll();
  }
  kfac::StepReport step(const StepArgs& args, Stream stream) override;
  void visit_state(StateVisitor& caller) override;

 private:
  void begin_step();
  /// Reduces the gradients; returns whether the ranks accept the step.
  [[nodiscard]] bool agree(const StepArgs& args, kfac::StepReport& report);

  OptimizerFrame frame_;
  Rule rule_;
  std::optional<OwnedLayers> owned_;
  std::vector<Tensor> states_;  ///< Of each layer that this rank updates, [kStates, elements].
  UpdateTable table_;
  std::int64_t steps_ = 0;
  std::optional<Gradients> gradients_;
  std::vector<comm::BucketedReduce*> active_;
  std::optional<comm::StepPipeline> pipeline_;  ///< Declared last: destroyed before the buffers.
};

template <class Rule>
kfac::StepReport FirstOrder<Rule>::step(const StepArgs& args, Stream stream) {
  kfac::StepReport report;
  enter_step(frame_, args, stream);
  report.updated = agree(args, report);
  if (report.updated) {
    const ActivityTimer timer(report.seconds.update);
    report.momentum = rule_.update(frame_.ctx, table_, args);
  }
  if (report.updated) owned_->gather(report);
  report.bytes = pipeline_->bytes();
  report.scratch_growths = frame_.ctx.scratch_growths();
  begin_step();
  frame_.join.leave(stream, frame_.ctx.stream());
  return report;
}

template <class Rule>
bool FirstOrder<Rule>::agree(const StepArgs& args, kfac::StepReport& report) {
  const ActivityTimer timer(report.seconds.exchange, "exchange");
  gradients_->complete(args.flags.rejects());
  report.step = ++steps_;  // A call that was refused does not count.
  comm::FlagMessage flags = flags_of(args);
  flags.hash = comm::mix_hash(flags.hash, static_cast<double>(steps_));
  gradients_->raise_flags(flags);
  pipeline_->submit(flags);
  gradients_->request();
  report.agreement = pipeline_->wait().flags;  // The only host synchronization.
  gradients_->collect(report);
  report.seconds.exchange += pipeline_->polled_seconds();
  return report.agreement.may_update();
}

template <class Rule>
void FirstOrder<Rule>::prepare() {
  FieldText text;
  for_each_field(rule_.options, text);
  frame_.agree(name(), text.text(), 0,
               MatrixRule<Rule> ? comm::Repeated::nothing : comm::Repeated::updates);
  owned_.emplace(frame_, loads_of<Rule>(frame_));
  const auto& o = rule_.options;
  pipeline_.emplace(frame_.ctx, frame_.grid, o.communication.overlap);
  gradients_.emplace(frame_,
                     GradientOptions{.recipients = owned_->recipients(),
                                     .loss_reduction = o.loss_reduction,
                                     .bucket_bytes = o.communication.bucket_bytes,
                                     .wire = o.communication.gradient_wire},
                     owned_->owners());
  std::vector<UpdatedPart> parts;
  states_.resize(frame_.layers.size());
  for (std::size_t i = 0; i < frame_.layers.size(); ++i) {
    if (!owned_->updates(i)) continue;
    ParameterLayer layer = frame_.layers[i];
    TensorView gradient = gradients_->of(static_cast<int>(i));
    take_matrix(frame_.ctx, rule_, layer, gradient);
    if (layer.numel() == 0) continue;
    states_[i] =
        Tensor::zeros(frame_.ctx, {std::ssize(Rule::kStates), layer.numel()}, frame_.dtype());
    add_parts(layer, gradient, states_[i], parts);
  }
  table_ = make_update_table(frame_.ctx, frame_.dtype(), std::move(parts));
  frame_.prepared = true;
  begin_step();
  frame_.ctx.stream().synchronize();  // The caller's stream may read the parameters from here on.
}

template <class Rule>
void FirstOrder<Rule>::begin_step() {
  active_.clear();
  gradients_->begin(active_);
  pipeline_->begin(active_);
}

template <class Rule>
void FirstOrder<Rule>::visit_state(StateVisitor& caller) {
  frame_.require_prepared("visit_state");
  HostVisitor visitor(frame_.ctx, caller);
  visitor.integer("steps", StateKind::replicated, steps_);
  gradients_->visit_state(visitor);
  rule_.visit_state(visitor);
  for (std::size_t i = 0; i < states_.size(); ++i)
    for (std::size_t s = 0; states_[i].is_set() && s < Rule::kStates.size(); ++s)
      visitor.tensor(detail::concat(frame_.layers[i].name, '.', Rule::kStates[s]),
                     owned_->state_kind(),
                     states_[i].view().slice(0, static_cast<std::int64_t>(s), 1).flat());
  begin_step();
}

}  // namespace dkfac::optim
