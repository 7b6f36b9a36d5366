#include <array>
#include <cmath>
#include <optional>
#include <span>
#include <utility>

#include "dkfac/core/ops.h"

#include "comm/collective/all_gather.h"
#include "core/shared/activity_timer.h"
#include "core/shared/host_visitor.h"
#include "kfac/step.h"
#include "optim/adamw_moments.h"
#include "optim/frame.h"
#include "optim/gradients.h"
#include "optim/quadratic_step.h"
#include "optim/shared/fields.h"
#include "optim/updates.h"

namespace dkfac::optim {
namespace {

class Kfac final : public Optimizer {
 public:
  Kfac(std::shared_ptr<comm::Communicator> comm, const KfacOptions& options, Device device,
       ContextOptions context)
      : options_(options),
        frame_(comm, device, context),
        step_(frame_.ctx, comm, options.curvature, context) {}

  [[nodiscard]] std::string_view name() const override { return "kfac"; }
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] LayerId add_layer(std::string name, LayerSpec spec, LayerParams params) override {
    const LayerId id = frame_.add_layer(std::move(name), std::move(spec), params);
    step_.curvature().add_layer(frame_.layers.back().name, frame_.layers.back().spec);
    return id;
  }
  void prepare() override;
  [[nodiscard]] bool wants_statistics() const override {
    return step_.recorder().wants_statistics();
  }
  [[nodiscard]] bool wants_input(LayerId id) const override {
    return step_.recorder().wants_input(id);
  }
  [[nodiscard]] bool wants_grad_output(LayerId id) const override {
    return step_.recorder().wants_grad_output(id);
  }
  void set_curvature(const kfac::CurvatureSettings& settings) override {
    if (step_.curvature().set_curvature(settings) && frame_.prepared) step_.begin(*gradients_);
  }
  void record_input(LayerId id, ConstTensorView input, Stream stream, RecordScale scale) override {
    record(id, stream, kfac::input_record(input, scale));
  }
  void record_grad_output(LayerId id, ConstTensorView grad_output, Stream stream,
                          RecordScale scale) override {
    record(id, stream, kfac::grad_output_record(grad_output, scale));
  }
  void record_normalization(LayerId id, ConstTensorView x, ConstTensorView mean,
                            ConstTensorView inv_std, ConstTensorView grad_output, Stream stream,
                            RecordScale scale) override {
    record(id, stream, kfac::normalization_record(x, mean, inv_std, grad_output, scale));
  }
  [[nodiscard]] bool takes_sample_gradients() const override { return true; }
  void record_sample_gradients(LayerId id, ConstTensorView gradients, Stream stream,
                               RecordScale scale) override {
    record(id, stream, kfac::sample_gradients_record(gradients, scale));
  }
  [[nodiscard]] std::optional<PassState> pass_state(RecordScale scale) override {
    frame_.require_prepared("pass_state");
    return step_.recorder().pass_state(scale);
  }
  void resume(const PassState& state, Stream stream) override {
    frame_.require_prepared("resume");
    // In both directions: replayed work is on the caller's stream, in memory of the context's.
    frame_.join.enter("resume", stream, frame_.ctx.stream());
    step_.recorder().resume(state);
    step_.poll();
    frame_.join.leave(stream, frame_.ctx.stream());
  }
  void grads_ready(LayerId id, Stream stream, RecordScale scale) override {
    frame_.require_prepared("grads_ready");
    gradients_->announce(id, stream, scale);
    step_.poll();
  }
  void all_grads_ready(std::span<const LayerId> layers, Stream stream, RecordScale scale) override {
    frame_.require_prepared("grads_ready");
    gradients_->announce(layers, stream, scale);
    step_.poll();
  }
  kfac::StepReport step(const StepArgs& args, Stream stream) override;
  void set_curvature_along(CurvatureAlong along) override { along_ = std::move(along); }
  [[nodiscard]] kfac::LayerFactors read_factors(LayerId id) override {
    frame_.require_prepared("read_factors");
    return step_.curvature().read_factors(id);
  }
  void visit_state(StateVisitor& caller) override;

 private:
  [[nodiscard]] bool by_adamw() const { return options_.update == DirectionUpdate::adamw; }
  [[nodiscard]] bool by_model() const {
    return options_.curvature.step_length == kfac::StepLength::quadratic;
  }
  void record(LayerId id, Stream stream, const kfac::LayerRecord& record) {
    frame_.require_prepared(record.call);
    step_.record(id, stream, record);
  }
  /// Names of the state tensors of a parameter.
  [[nodiscard]] std::span<const std::string_view> state_names() const;
  /// Momentum of a step, or beta1.
  [[nodiscard]] double momentum_of(const StepArgs& args) const;
  void check_momentum(const StepArgs& args) const;
  /// Counts an update; momentum: that of the step.
  [[nodiscard]] DirectionPass next_pass(double lr, double momentum);
  /// Adds a layer that this rank preconditions, if it has curvature.
  void add_direction(int layer);
  /// Appends weight and bias of such a layer.
  void add_layer_parts(int layer, std::vector<UpdatedPart>& parts);
  /// Updates the layers that this rank preconditions.
  void update_parameters(const StepArgs& args, ConstTensorView clip, kfac::StepReport& report);
  void gather_parameters(kfac::StepReport& report);
  /// Whether weights are sent in another type than their own.
  [[nodiscard]] bool has_masters() const {
    return options_.curvature.communication.weight_wire.value_or(frame_.dtype()) != frame_.dtype();
  }

  KfacOptions options_;
  OptimizerFrame frame_;
  std::optional<Gradients> gradients_;
  std::optional<comm::AllGather> weights_;
  // For the layers that this rank preconditions.
  std::vector<Tensor> states_;  ///< [state_names(), elements]
  std::vector<Tensor> masters_;
  std::vector<kfac::LayerDirection> with_curvature_;
  UpdateTable table_;
  comm::HostDevicePair
      saturated_;  ///< f64[1]: weights out of the range of their wire in the last update.
  double last_lr_ = 0;
  AdamwMoments moments_;
  CurvatureAlong along_;                    ///< Of the next step.
  std::optional<QuadraticStep> quadratic_;  ///< With StepLength::quadratic, in place of the above.
  kfac::Step step_;  ///< Declared last: its pipeline is destroyed before the buffers.
};

kfac::StepReport Kfac::step(const StepArgs& args, Stream stream) {
  enter_step(frame_, args, stream);
  check_momentum(args);
  const CurvatureAlong along = std::exchange(along_, {});
  DKFAC_CHECK(!quadratic_ || along,
              "[step] step_length is quadratic, and nothing computes the curvature along the step; "
              "call set_curvature_along() before each, or use another step_length");
  step_.agree(flags_of(args), *gradients_);
  if (step_.update_curvature()) {
    if (quadratic_) quadratic_->keep(*gradients_);
    const ConstTensorView clip = step_.precondition(with_curvature_, args.lr);
    if (quadratic_) {
      quadratic_->update(*gradients_, along, step_.curvature().options().damping, args.lr, stream,
                         step_.report());
    } else {
      update_parameters(args, clip, step_.report());
      gather_parameters(step_.report());
    }
  }
  kfac::StepReport report = step_.end(*gradients_);
  frame_.join.leave(stream, frame_.ctx.stream());
  return report;
}

void Kfac::prepare() {
  const kfac::CurvatureOptions& o = options_.curvature;
  FieldText text;
  for_each_field(o, text);
  for_each_field(options_, text);
  frame_.agree(name(), text.text(), o.distribution.grad_worker_fraction,
               by_model() ? comm::Repeated::updates : comm::Repeated::nothing);
  step_.prepare(frame_.grid, 0);
  const int count = step_.curvature().layers();
  std::vector<int> owners;
  for (int i = 0; i < count; ++i) owners.push_back(step_.curvature().layer(i).owners.layer);
  gradients_.emplace(frame_,
                     GradientOptions{.recipients = comm::Recipients::workers,
                                     .loss_reduction = o.loss_reduction,
                                     .bucket_bytes = o.communication.bucket_bytes,
                                     .wire = options_.curvature.communication.gradient_wire},
                     owners);
  states_.resize(frame_.layers.size());
  masters_.resize(frame_.layers.size());
  for (int i = 0; i < count; ++i)
    if (step_.curvature().is_worker_of(i)) add_direction(i);
  if (by_model()) {
    std::vector<QuadraticStep::Role> roles;
    for (int i = 0; i < count; ++i)
      roles.push_back({step_.curvature().owns(i), step_.curvature().is_worker_of(i),
                       step_.curvature().layer(i).has_curvature()});
    quadratic_.emplace(frame_, owners, roles, options_.weight_decay);
  } else {
    weights_.emplace(frame_.ctx, frame_.grid, "weights", frame_.blocks(owners),
                     options_.curvature.communication.weight_wire.value_or(frame_.dtype()));
    saturated_ = comm::HostDevicePair(frame_.ctx, {1}, DType::f64);
    std::vector<UpdatedPart> parts;
    for (int i = 0; i < count; ++i)
      if (step_.curvature().is_worker_of(i)) add_layer_parts(i, parts);
    table_ = make_update_table(frame_.ctx, frame_.dtype(), std::move(parts));
  }
  frame_.prepared = true;
  step_.begin(*gradients_);
  frame_.ctx.stream().synchronize();  // The caller's stream may read the parameters from here on.
}

void Kfac::add_direction(int index) {
  if (!step_.curvature().layer(index).has_curvature()) return;
  const ParameterLayer& layer = frame_.layers[static_cast<std::size_t>(index)];
  const TensorView gradient = gradients_->of(index);
  with_curvature_.push_back(
      {.layer = index,
       .weight = gradient.slice(0, 0, layer.weight),
       .bias = layer.bias > 0 ? gradient.slice(0, layer.weight, layer.bias) : TensorView{},
       .whole = gradient,
       .weight_lr = layer.params.weight_lr,
       .bias_lr = layer.params.bias_lr});
}

void Kfac::add_layer_parts(int index, std::vector<UpdatedPart>& parts) {
  const auto i = static_cast<std::size_t>(index);
  const ParameterLayer& layer = frame_.layers[i];
  const TensorView gradient = gradients_->of(index);
  states_[i] =
      Tensor::zeros(frame_.ctx, {std::ssize(state_names()), layer.numel()}, frame_.dtype());
  if (has_masters()) {
    masters_[i] = Tensor::zeros(frame_.ctx, {layer.numel()}, frame_.dtype());
    pack_parameters(frame_.ctx, layer, masters_[i]);
  }
  const std::size_t first = parts.size();
  add_parts(layer, gradient, states_[i], parts);
  std::int64_t offset = 0;
  for (std::size_t p = first; p < parts.size(); ++p) {
    UpdatedPart& part = parts[p];
    if (masters_[i].is_set()) part.master = masters_[i].view().slice(0, offset, part.numel());
    if (weights_->needed()) part.block = weights_->block(index).slice(0, offset, part.numel());
    offset += part.numel();
  }
  // Frozen weights are not rescaled.
  if (layer.weight > 0 && layer.params.weight_lr > 0) parts[first].d_out = output_rows(layer.spec);
}

std::span<const std::string_view> Kfac::state_names() const {
  static constexpr std::array<std::string_view, 1> kVelocity{"velocity"};
  if (by_adamw()) return AdamwMoments::kStates;
  return kVelocity;
}

double Kfac::momentum_of(const StepArgs& args) const {
  if (by_adamw()) return args.momentum.value_or(options_.beta1);
  const double full = args.momentum.value_or(options_.momentum);
  switch (options_.momentum_rule) {
    case MomentumRule::constant:
      return full;
    case MomentumRule::corrected:
      return args.lr < last_lr_ ? full * args.lr / last_lr_ : full;
    case MomentumRule::paper:
      return full / options_.initial_lr * args.lr;
  }
  return full;
}

void Kfac::check_momentum(const StepArgs& args) const {
  const double momentum = momentum_of(args);
  DKFAC_CHECK(momentum < 1,
              "[step] the paper's momentum rule gives m0 / initial_lr * lr = ", momentum,
              " at the rate ", args.lr, " with initial_lr = ", options_.initial_lr,
              "; it must be below 1, so set initial_lr to the highest rate of the run");
}

DirectionPass Kfac::next_pass(double lr, double momentum) {
  if (by_adamw()) return moments_.next(options_, lr, momentum);
  return KfacPass{.lr = lr,
                  .momentum = momentum,
                  .weight_decay = options_.weight_decay,
                  .rule = options_.momentum_rule};
}

void Kfac::update_parameters(const StepArgs& args, ConstTensorView clip, kfac::StepReport& report) {
  const ActivityTimer timer(report.seconds.update);
  report.momentum = momentum_of(args);
  kfac_update(frame_.ctx, table_,
              {.pass = next_pass(args.lr, report.momentum),
               .rescale = options_.rescale,
               .clip = clip,
               .wire = options_.curvature.communication.weight_wire,
               .saturated = saturated_.device()});
  // On a device, that of report.update_step, the previous update: the host does not wait for this
  // one.
  report.saturated = static_cast<std::int64_t>(*saturated_.numbers<double>());
  saturated_.fetch(frame_.ctx);
  last_lr_ = args.lr;
}

void Kfac::gather_parameters(kfac::StepReport& report) {
  if (!weights_->needed()) return;
  const ActivityTimer timer(report.seconds.exchange, "exchange"), part(report.seconds.gather);
  weights_->run();
  // Workers read the gathered weights as well, so that they are bitwise identical on all ranks.
  for (std::size_t i = 0; i < frame_.layers.size(); ++i)
    unpack_parameters(frame_.ctx, weights_->block(static_cast<int>(i)), frame_.layers[i]);
}

void Kfac::visit_state(StateVisitor& caller) {
  frame_.require_prepared("visit_state");
  HostVisitor visitor(frame_.ctx, caller);
  visitor.integer("steps", StateKind::replicated, step_.count());
  gradients_->visit_state(visitor);
  if (quadratic_)
    quadratic_->visit_state(visitor);
  else if (by_adamw())
    moments_.visit_state(visitor);
  else
    visitor.real("last_lr", StateKind::replicated, last_lr_);
  for (std::size_t i = 0; i < frame_.layers.size(); ++i) {
    const StateKind kind =
        step_.curvature().owns(static_cast<int>(i)) ? StateKind::owned : StateKind::owner_copy;
    const std::string& layer = frame_.layers[i].name;
    for (std::size_t s = 0; states_[i].is_set() && s < state_names().size(); ++s)
      visitor.tensor(detail::concat(layer, '.', state_names()[s]), kind,
                     states_[i].view().slice(0, static_cast<std::int64_t>(s), 1).flat());
    if (masters_[i].is_set()) visitor.tensor(layer + ".master", kind, masters_[i]);
  }
  step_.visit_state(visitor);
  step_.begin(*gradients_);
}

std::string Kfac::describe() const {
  frame_.require_prepared("describe");
  const auto element = static_cast<std::int64_t>(size_of(frame_.dtype()));
  const std::int64_t states = std::ssize(state_names()) * element;
  std::vector<kfac::NamedBytes> buffers = gradients_->buffers();
  if (quadratic_) {
    buffers.push_back({"directions and last step", quadratic_->bytes()});
    return step_.curvature().describe({}, std::move(buffers));
  }
  buffers.push_back({"gathered weights", static_cast<std::int64_t>(weights_->bytes())});
  return step_.curvature().describe({.momentum = states, .masters = has_masters() ? element : 0},
                                    std::move(buffers));
}

/// Throws for an option of the other DirectionUpdate that differs from its default.
void check_unused(const KfacOptions& o) {
  const KfacOptions unset;
  const struct {
    DirectionUpdate update;
    const char* field;
    bool is_set;
  } fields[] = {
      {DirectionUpdate::momentum, "momentum", o.momentum != unset.momentum},
      {DirectionUpdate::momentum, "momentum_rule", o.momentum_rule != unset.momentum_rule},
      {DirectionUpdate::momentum, "initial_lr", o.initial_lr != unset.initial_lr},
      {DirectionUpdate::momentum, "rescale", o.rescale != unset.rescale},
      {DirectionUpdate::momentum, "kl_clip", o.curvature.kl_clip != unset.curvature.kl_clip},
      {DirectionUpdate::adamw, "beta1", o.beta1 != unset.beta1},
      {DirectionUpdate::adamw, "beta2", o.beta2 != unset.beta2},
      {DirectionUpdate::adamw, "epsilon", o.epsilon != unset.epsilon}};
  for (const auto& [update, field, is_set] : fields)
    DKFAC_CHECK(update == o.update || !is_set, "[kfac options] ", field, " is set, and update is ",
                name_of(kDirectionUpdates, o.update), ", which has no use for it; leave it out");
}

}  // namespace

void KfacOptions::validate() const {
  curvature.validate();
  for_each_field(*this, FieldChecks("kfac options"));
  check_unused(*this);
  if (curvature.step_length == kfac::StepLength::quadratic) check_quadratic(*this);
  DKFAC_CHECK(momentum_rule != MomentumRule::paper || (initial_lr > 0 && std::isfinite(initial_lr)),
              "[kfac options] initial_lr is ", initial_lr,
              "; the paper's momentum rule divides by it, so it must be > 0");
}

std::unique_ptr<Optimizer> make_kfac(std::shared_ptr<comm::Communicator> comm, KfacOptions options,
                                     Device device, ContextOptions context) {
  options.validate();
  if (options.update == DirectionUpdate::adamw &&
      options.curvature.step_length == kfac::StepLength::automatic)
    options.curvature.step_length = kfac::StepLength::gradual;
  return std::make_unique<Kfac>(std::move(comm), options, device, context);
}

}  // namespace dkfac::optim
