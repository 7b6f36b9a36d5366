#include "dkfac/kfac/preconditioner.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "dkfac/core/ops.h"

#include "comm/collective/all_gather.h"
#include "comm/collective/flag_message.h"
#include "comm/collective/stream_join.h"
#include "core/shared/activity_timer.h"
#include "core/shared/host_visitor.h"
#include "core/shared/registration.h"
#include "kfac/precondition/averaged_gradients.h"
#include "kfac/precondition/row_major.h"
#include "kfac/shared/fields.h"
#include "kfac/step.h"

namespace dkfac::kfac {

struct DKFAC_LOCAL Preconditioner::Impl {
  Impl(std::shared_ptr<comm::Communicator> communicator, const CurvatureOptions& options,
       Device device, ContextOptions context)
      : comm(std::move(communicator)),
        ctx(device, context),
        join(device),
        steps(ctx, comm, options, context) {}

  void prepare();
  void ensure_prepared() {
    if (!prepared) prepare();
  }
  void record(LayerId id, Stream stream, const LayerRecord& record) {
    ensure_prepared();
    steps.record(id, stream, record);
  }
  StepReport step(std::span<const LayerGrad> given, Stream stream, const StepArgs& args);
  void check_grads(std::span<const LayerGrad> given, bool allow_missing);
  [[nodiscard]] comm::FlagMessage flags_of(const StepArgs& args) const;
  void pack(const LayerGrad& grad);
  void unpack(const LayerGrad& grad);
  void compare_gradients();
  void scale(ConstTensorView clip);
  void gather(std::span<const LayerGrad> given);
  /// Whether the direction of a layer goes through the gather buffer.
  [[nodiscard]] bool gathers(int layer) {
    return gathered->needed() && curvature().layer(layer).has_curvature() &&
           !kept[static_cast<std::size_t>(layer)];
  }
  /// The output of preconditioning a layer: a block of the gather buffer, or the caller's gradient.
  [[nodiscard]] LayerDirection target(const LayerGrad& grad);
  [[nodiscard]] Curvature& curvature() { return steps.curvature(); }
  [[nodiscard]] const CurvatureBlock& layer(LayerId id) {
    return curvature().layer(static_cast<int>(id));
  }

  // The gradients of a step, as Step expects them; `grads` are those of this step.
  void begin(std::vector<comm::BucketedReduce*>& active);
  void complete(bool /*allow_missing*/) {
    for (const LayerGrad& grad : grads)
      if (curvature().is_worker_of(static_cast<int>(grad.layer))) pack(grad);
  }
  void raise_flags(comm::FlagMessage& message) const { message.gradient_count = nonfinite; }
  void request() {}
  void collect(StepReport& /*report*/) {}

  std::shared_ptr<comm::Communicator> comm;
  comm::WorkerGrid grid;  // Set by prepare().
  Context ctx;
  comm::StreamJoin join;
  struct Rates {
    double weight = 1, bias = 1;
  };
  std::vector<Rates> rates;  // Of each layer, as multiples of StepArgs::lr.
  std::vector<bool> kept;    // Layers whose directions stay with their workers.
  bool prepared = false;
  Tensor nonfinite;        // f32[1]
  std::vector<bool> seen;  // Layers whose gradients were passed to this step.
  int compared_steps =
      8;  // First updates, in which gradients are compared over the ranks, if need be.
  std::optional<comm::BucketedReduce>
      flags;  // Carries the step's flags where no statistics are due.
  std::optional<comm::AllGather> gathered;
  std::span<const LayerGrad> grads;     // Row-major; during step().
  std::vector<LayerDirection> targets;  // This step's directions on this rank.
  RowMajor row_major;
  Step steps;  // Declared last: its pipeline is destroyed before the buffers.
};

StepReport Preconditioner::Impl::step(std::span<const LayerGrad> given, Stream stream,
                                      const StepArgs& args) {
  ensure_prepared();
  const Metered metered(curvature().meter(), StepPart::apply);
  join.enter("step", stream, ctx.stream());
  check_grads(given, args.flags.rejects());
  const comm::FlagMessage message = flags_of(args);
  grads = row_major.copies(ctx, given);
  steps.agree(message, *this, given.empty() && args.flags.rejects());
  if (compared_steps > 0 && comm->size() > 1 && steps.report().agreement.may_update())
    compare_gradients();
  if (steps.update_curvature()) {
    scale(steps.precondition(targets, args.lr));
    gather(given);
  }
  StepReport report = steps.end(*this);
  join.leave(stream, ctx.stream());
  return report;
}

/// The step's flags of this rank from its arguments, which it checks.
comm::FlagMessage Preconditioner::Impl::flags_of(const StepArgs& args) const {
  const bool clipped = steps.curvature().options().kl_clip > 0;
  DKFAC_CHECK(!clipped || (args.lr > 0 && std::isfinite(args.lr)), "[step] StepArgs::lr is ",
              args.lr, "; the KL clip needs the learning rate of the step, > 0");
  comm::check_flags(args.flags, ctx.device());
  comm::FlagMessage message{.caller = args.flags};
  if (!clipped) return message;
  message.hash = comm::mix_hash(message.hash, args.lr);
  for (const Rates& r : rates)
    message.hash = comm::mix_hash(comm::mix_hash(message.hash, r.weight), r.bias);
  return message;
}

/// In the first updates, until their gradients have told something.
void Preconditioner::Impl::compare_gradients() {
  std::vector<const LayerGrad*> by_layer(kept.size());
  for (const LayerGrad& grad : grads) by_layer[static_cast<std::size_t>(grad.layer)] = &grad;
  std::vector<NamedGradient> everywhere;
  for (std::size_t i = 0; i < kept.size(); ++i)
    if (const CurvatureBlock& block = curvature().layer(static_cast<int>(i));
        block.has_curvature() && !kept[i])
      everywhere.push_back(
          {block.name, by_layer[i]->weight.empty() ? by_layer[i]->bias : by_layer[i]->weight});
  --compared_steps;
  try {
    if (everywhere.empty() || require_averaged(ctx, *comm, everywhere)) compared_steps = 0;
  } catch (...) {
    steps.give_up(*this);
    throw;
  }
}

void Preconditioner::Impl::scale(ConstTensorView clip) {
  if (clip.empty()) return;
  for (const LayerDirection& d : targets) {
    if (!curvature().layer(d.layer).has_inverse()) continue;
    scale_direction(ctx, clip, d.weight);
    scale_direction(ctx, clip, d.bias);
  }
}

void Preconditioner::Impl::gather(std::span<const LayerGrad> given) {
  StepSeconds& seconds = steps.report().seconds;
  const ActivityTimer timer(seconds.exchange, "exchange"), part(seconds.gather);
  const auto done = [this](const LayerGrad& grad) {
    return curvature().preconditions(static_cast<int>(grad.layer));
  };
  gathered->run();
  for (const LayerGrad& grad : grads)
    if (done(grad) && gathers(static_cast<int>(grad.layer))) unpack(grad);
  for (std::size_t i = 0; i < given.size(); ++i)
    if (done(given[i])) row_major.write_back(ctx, given, i);
}

void Preconditioner::Impl::prepare() {
  DKFAC_CHECK(!prepared, "[prepare] was called before");
  const CurvatureOptions& options = curvature().options();
  FieldText fields;
  for_each_field(options, fields);
  std::string text = "preconditioner\n" + fields.text() + curvature().agreed_text();
  for (int i = 0; i < curvature().layers(); ++i)
    text += registration_line(curvature().layer(i).name, curvature().layer(i).spec) +
            (kept[static_cast<std::size_t>(i)] ? " keeps its direction\n" : "");
  comm::require_equal(*comm, text, "the preconditioner's layers and options");
  grid = comm::make_worker_grid(comm, options.distribution.grad_worker_fraction);
  comm::require_equal_arithmetic(grid, ctx);
  steps.prepare(grid, comm::kFlagElements);
  flags.emplace(ctx, grid, "flags", std::vector<comm::Slot>{},
                comm::BucketedReduceOptions{.recipients = comm::Recipients::all,
                                            .dtype = options.dtype,
                                            .trailer = comm::kFlagElements});
  std::vector<comm::Slot> slots;
  for (int i = 0; i < curvature().layers(); ++i) {
    const CurvatureBlock& block = curvature().layer(i);
    const bool sent = block.has_curvature() && !kept[static_cast<std::size_t>(i)];
    slots.push_back(
        {block.owners.layer, sent ? weight_numel(block.spec) + bias_numel(block.spec) : 0, 0});
  }
  gathered.emplace(ctx, grid, "preconditioned gradients", std::move(slots), options.dtype);
  nonfinite = Tensor::zeros(ctx, {1});
  prepared = true;
  steps.begin(*this);
}

void Preconditioner::Impl::begin(std::vector<comm::BucketedReduce*>& active) {
  if (active.empty()) {
    flags->begin();
    active.push_back(&*flags);
  }
  targets.clear();
  grads = {};
  ops::fill(ctx, nonfinite, 0);
}

void Preconditioner::Impl::check_grads(std::span<const LayerGrad> given, bool allow_missing) {
  seen.assign(static_cast<std::size_t>(curvature().layers()), false);
  for (const LayerGrad& grad : given) {
    const int i = curvature().checked(grad.layer, "step");
    const CurvatureBlock& block = curvature().layer(i);
    DKFAC_CHECK(!seen[static_cast<std::size_t>(i)], "[step] layer '", block.name, "' comes twice");
    seen[static_cast<std::size_t>(i)] = true;
    const Caller caller("step", block.name);
    const TensorView& weight = grad.weight;
    const bool columns = is_column_major(weight);  // Copied to rows, which have no gaps.
    check_weight(caller, "the gradient of the weight", block.spec,
                 columns ? TensorView(weight.raw(), weight.dtype(), weight.shape(), weight.device())
                         : weight,
                 ctx.device());
    check_bias(caller, "the gradient of the bias", block.spec, grad.bias, ctx.device());
  }
  for (int i = 0; i < curvature().layers(); ++i) {
    const bool used = curvature().layer(i).has_curvature() &&
                      (!kept[static_cast<std::size_t>(i)] || curvature().is_worker_of(i));
    DKFAC_CHECK(allow_missing || seen[static_cast<std::size_t>(i)] || !used, "[step] layer '",
                curvature().layer(i).name, "' has no gradient; pass those of all layers");
  }
}

LayerDirection Preconditioner::Impl::target(const LayerGrad& grad) {
  const int index = static_cast<int>(grad.layer);
  const std::int64_t weight = grad.weight.numel(), bias = grad.bias.numel();
  const Rates& rate = rates[static_cast<std::size_t>(index)];
  LayerDirection out{.layer = index, .weight_lr = rate.weight, .bias_lr = rate.bias};
  if (gathers(index)) {
    const TensorView block = gathered->block(index);
    out.weight = block.slice(0, 0, weight);
    if (bias > 0) out.bias = block.slice(0, weight, bias);
  } else {
    if (weight > 0) out.weight = grad.weight.flat();
    if (bias > 0) out.bias = grad.bias.flat();
  }
  return out;
}

/// Copies a gradient that this rank preconditions to its target(), counting elements that are not
/// finite.
void Preconditioner::Impl::pack(const LayerGrad& grad) {
  const LayerDirection to = target(grad);
  const auto pack_part = [this](TensorView part, TensorView out) {
    if (part.numel() == 0) return;
    if (part.dtype() == out.dtype() && part.raw() != out.raw()) {
      ops::copy_checked(ctx, 1, part.flat(), out, nonfinite);
      return;
    }
    ops::count_nonfinite(ctx, part, nonfinite);
    if (part.raw() != out.raw()) ops::cast(ctx, part.flat(), out);
  };
  pack_part(grad.weight, to.weight);
  pack_part(grad.bias, to.bias);
  if (layer(grad.layer).has_curvature()) targets.push_back(to);
}

void Preconditioner::Impl::unpack(const LayerGrad& grad) {
  const LayerDirection from = target(grad);
  if (grad.weight.numel() > 0) ops::cast(ctx, from.weight, grad.weight.flat());
  if (grad.bias.numel() > 0) ops::cast(ctx, from.bias, grad.bias.flat());
}

Preconditioner::Preconditioner(std::shared_ptr<comm::Communicator> comm, CurvatureOptions options,
                               Device device, ContextOptions context) {
  DKFAC_CHECK(comm != nullptr,
              "[preconditioner] the communicator is null; comm::make_self() is one");
  DKFAC_CHECK(comm->size() <= comm::kMaxFlagRanks, "[preconditioner] ", comm->size(),
              " ranks; flags are counted exactly up to ", comm::kMaxFlagRanks);
  const CommunicationOptions& wires = options.communication;
  DKFAC_CHECK(!wires.gradient_wire && !wires.weight_wire,
              "[preconditioner] communication.gradient_wire and weight_wire are for make_kfac(): "
              "gradients and weights are the caller's to send; leave them unset");
  DKFAC_CHECK(options.step_length != StepLength::quadratic,
              "[preconditioner] step_length is quadratic, whose rates are right only for the whole "
              "step, and here another optimizer makes it; use make_kfac(), or another step_length");
  impl_ = std::make_unique<Impl>(std::move(comm), options, device, context);
}
Preconditioner::~Preconditioner() = default;
Preconditioner::Preconditioner(Preconditioner&&) noexcept = default;
Preconditioner& Preconditioner::operator=(Preconditioner&&) noexcept = default;

LayerId Preconditioner::add_layer(std::string name, LayerSpec spec) {
  Curvature& curvature = impl_->curvature();
  DKFAC_CHECK(!impl_->prepared, "[add_layer] layer '", name, "' comes after prepare()");
  bool exists = false;
  for (int i = 0; i < curvature.layers(); ++i) exists = exists || curvature.layer(i).name == name;
  check_new_name(name, exists);
  validate(spec, name);
  curvature.add_layer(std::move(name), std::move(spec));
  impl_->rates.emplace_back();
  impl_->kept.push_back(false);
  return static_cast<LayerId>(curvature.layers() - 1);
}

void Preconditioner::keep_direction(LayerId layer) {
  const int i = impl_->curvature().checked(layer, "keep_direction");
  DKFAC_CHECK(!impl_->prepared, "[keep_direction] layer '", impl_->curvature().layer(i).name,
              "' comes after prepare(), which has allocated what is gathered");
  impl_->kept[static_cast<std::size_t>(i)] = true;
}

void Preconditioner::prepare() { impl_->prepare(); }

bool Preconditioner::wants_statistics() const { return impl_->steps.recorder().wants_statistics(); }
bool Preconditioner::wants_input(LayerId layer) const {
  return impl_->steps.recorder().wants_input(layer);
}
bool Preconditioner::wants_grad_output(LayerId layer) const {
  return impl_->steps.recorder().wants_grad_output(layer);
}

void Preconditioner::record_input(LayerId layer, ConstTensorView input, Stream stream,
                                  RecordScale scale) {
  impl_->record(layer, stream, input_record(input, scale));
}

void Preconditioner::record_grad_output(LayerId layer, ConstTensorView grad_output, Stream stream,
                                        RecordScale scale) {
  impl_->record(layer, stream, grad_output_record(grad_output, scale));
}

void Preconditioner::record_normalization(LayerId layer, ConstTensorView x, ConstTensorView mean,
                                          ConstTensorView inv_std, ConstTensorView grad_output,
                                          Stream stream, RecordScale scale) {
  impl_->record(layer, stream, normalization_record(x, mean, inv_std, grad_output, scale));
}

void Preconditioner::record_sample_gradients(LayerId layer, ConstTensorView gradients,
                                             Stream stream, RecordScale scale) {
  impl_->record(layer, stream, sample_gradients_record(gradients, scale));
}

StepReport Preconditioner::step(std::span<const LayerGrad> grads, Stream stream,
                                const StepArgs& args) {
  return impl_->step(grads, stream, args);
}

void Preconditioner::count_own(double seconds) {
  DKFAC_CHECK(seconds >= 0 && std::isfinite(seconds), "[count_own] seconds are ", seconds,
              "; they must be finite and >= 0");
  kfac::count_own(impl_->curvature().meter(), seconds);
}

LayerFactors Preconditioner::read_factors(LayerId layer) {
  DKFAC_CHECK(impl_->prepared, "[read_factors] comes before prepare()");
  return impl_->curvature().read_factors(layer);
}

void Preconditioner::set_damping(double damping) { set_curvature({.damping = damping}); }

void Preconditioner::set_rates(LayerId layer, double weight_lr, double bias_lr) {
  const int i = impl_->curvature().checked(layer, "set_rates");
  for (const double rate : {weight_lr, bias_lr})
    DKFAC_CHECK(rate >= 0 && std::isfinite(rate), "[set_rates] layer '",
                impl_->curvature().layer(i).name, "': a multiplier of the learning rate is ", rate,
                "; it must be finite and >= 0");
  impl_->rates[static_cast<std::size_t>(i)] = {weight_lr, bias_lr};
}

void Preconditioner::set_curvature(const CurvatureSettings& settings) {
  if (impl_->curvature().set_curvature(settings) && impl_->prepared) impl_->steps.begin(*impl_);
}

void Preconditioner::visit_state(StateVisitor& caller) {
  impl_->ensure_prepared();
  HostVisitor visitor(impl_->ctx, caller);
  visitor.integer("steps", StateKind::replicated, impl_->steps.count());
  impl_->steps.visit_state(visitor);
  impl_->steps.begin(*impl_);
}

const CurvatureOptions& Preconditioner::options() const { return impl_->curvature().options(); }

std::string Preconditioner::describe() const {
  DKFAC_CHECK(impl_->prepared, "[describe] comes before prepare()");
  return impl_->curvature().describe(
      {}, {{"gathered directions", static_cast<std::int64_t>(impl_->gathered->bytes())}});
}

std::string Preconditioner::notice() const {
  DKFAC_CHECK(impl_->prepared, "[notice] comes before prepare()");
  std::string text = impl_->curvature().notice();
  const std::string kernels =
      impl_->ctx.device().is_cuda() ? std::string() : backend_info().warning;
  if (!kernels.empty()) text += (text.empty() ? "[prepare] " : ".\n[prepare] ") + kernels;
  return text;
}

}  // namespace dkfac::kfac
