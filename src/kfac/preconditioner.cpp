#include "dkfac/kfac/preconditioner.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "dkfac/core/ops.h"

#include "comm/collective/gather.h"
#include "comm/collective/pipeline.h"
#include "comm/collective/stream_join.h"
#include "kfac/curvature/engine.h"
#include "kfac/curvature/record_stream.h"
#include "kfac/curvature/share.h"
#include "kfac/optimizer/kl_clip.h"
#include "kfac/optimizer/parameters.h"
#include "kfac/shared/host_visitor.h"
#include "kfac/shared/phase_timer.h"

namespace dkfac::kfac {

struct Preconditioner::Impl {
  Impl(std::shared_ptr<comm::Communicator> communicator, const CurvatureOptions& options,
       Device device, ContextOptions context)
      : comm(std::move(communicator)),
        ctx(device, context),
        records(ctx, options.records_stay, context),
        join(device),
        engine(ctx, comm, options) {
    engine.record_on(records.context());
  }

  void prepare();
  void ensure_prepared() {
    if (!prepared) prepare();
  }
  void begin_step();
  void enter(std::string_view operation, Stream caller) {
    join.enter(operation, caller, ctx.stream());
  }
  void leave(Stream caller) { join.leave(caller, ctx.stream()); }
  void check_grads(std::span<const LayerGrad> grads);
  void pack(const LayerGrad& grad);
  void unpack(const LayerGrad& grad);
  void precondition(std::span<const LayerGrad> grads, double lr, StepReport& report);
  void precondition_layer(const LayerGrad& grad);
  void clip(const LayerGrad& grad, ConstTensorView factor);
  /// This rank preconditions the layer.
  [[nodiscard]] bool works(LayerId layer) const {
    return grid.works(engine.owner(static_cast<int>(layer)));
  }
  [[nodiscard]] bool covered(LayerId layer) const {
    return engine.covered(static_cast<int>(layer));
  }
  /// Where the directions of a layer are made: what is gathered, or the caller's gradients.
  [[nodiscard]] LayerGrad target(const LayerGrad& grad);

  std::shared_ptr<comm::Communicator> comm;
  comm::WorkerGrid grid;  // From prepare() on.
  Context ctx;
  RecordStream records;
  comm::StreamJoin join;
  Engine engine;
  bool prepared = false;
  std::int64_t steps = 0;
  Tensor nonfinite;                      // f32[1]
  std::vector<bool> seen;                // Layers among the gradients of this step.
  std::optional<comm::Exchange> ballot;  // Carries the vote where no statistics do.
  std::vector<SharedPart> parts;
  std::optional<Share> share;
  std::optional<comm::Gather> directions;
  std::optional<KlClip> kl_clip;
  comm::Mirror kl_told;  // On a device: f64[1], the factor of the last step.
  std::vector<comm::Exchange*> active;
  std::optional<comm::Pipeline> pipeline;  // After the buffers, so that it ends before they do.
};

void Preconditioner::Impl::prepare() {
  DKFAC_CHECK(!prepared, "[prepare] was called before");
  std::string text = detail::concat("preconditioner\n", exact(engine.options()));
  for (int i = 0; i < engine.layers(); ++i)
    text += registration_line(engine.name(i), engine.spec(i));
  comm::require_equal(*comm, text, "the preconditioner's layers and options");
  grid = comm::make_worker_grid(comm, engine.options().worker_fraction);
  comm::require_equal_arithmetic(grid, ctx);
  pipeline.emplace(ctx, grid, engine.options().overlap);
  engine.prepare(grid, comm::kBallotElements);
  ballot.emplace(ctx, grid, "vote", std::vector<comm::Slot>{},
                 comm::ExchangeOptions{.recipients = comm::Recipients::all,
                                       .dtype = engine.options().dtype,
                                       .tail = comm::kBallotElements});
  std::vector<comm::Slot> slots;
  for (int i = 0; i < engine.layers(); ++i) {
    const LayerSpec& spec = engine.spec(i);
    slots.push_back(
        {engine.owner(i), engine.covered(i) ? weight_numel(spec) + bias_numel(spec) : 0, 0});
  }
  directions.emplace(ctx, grid, "preconditioned gradients", std::move(slots),
                     engine.options().dtype);
  add_shared_parts(engine, grid, true, parts);
  share.emplace(ctx, grid, engine.options().dtype, parts);
  nonfinite = Tensor::zeros(ctx, {1});
  if (engine.options().kl_clip > 0) {
    kl_clip.emplace(ctx, 2 * std::int64_t{engine.layers()});
    kl_told = comm::Mirror(ctx, {1}, DType::f64);
    *kl_told.numbers<double>() = 1;
  }
  prepared = true;
  begin_step();
}

void Preconditioner::Impl::begin_step() {
  active.clear();
  engine.begin_step();
  engine.add_active(active);
  if (active.empty()) {
    ballot->begin();
    active.push_back(&*ballot);
  }
  pipeline->begin(active);
  ops::fill(ctx, nonfinite, 0);
}

void Preconditioner::Impl::check_grads(std::span<const LayerGrad> grads) {
  seen.assign(static_cast<std::size_t>(engine.layers()), false);
  for (const LayerGrad& grad : grads) {
    const int i = static_cast<int>(grad.layer);
    DKFAC_CHECK(i >= 0 && i < engine.layers(), "[step] layer id ", i,
                " does not exist; add_layer() returned 0 to ", engine.layers() - 1);
    const LayerSpec& spec = engine.spec(i);
    DKFAC_CHECK(!seen[static_cast<std::size_t>(i)], "[step] layer '", engine.name(i),
                "' comes twice");
    seen[static_cast<std::size_t>(i)] = true;
    const Caller caller("step", engine.name(i));
    check_weight(caller, "the gradient of the weight", spec, grad.weight, ctx.device());
    check_bias(caller, "the gradient of the bias", spec, grad.bias, ctx.device());
  }
  for (int i = 0; i < engine.layers(); ++i)
    DKFAC_CHECK(seen[static_cast<std::size_t>(i)] || !engine.covered(i), "[step] layer '",
                engine.name(i), "' has no gradient; pass those of all layers");
}

/// Gradients of layers that this rank works on -> the gather buffer, checked on the way.
void Preconditioner::Impl::pack(const LayerGrad& grad) {
  const LayerGrad to = target(grad);
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
}

LayerGrad Preconditioner::Impl::target(const LayerGrad& grad) {
  if (!directions->needed() || !covered(grad.layer))
    return {grad.layer, grad.weight.numel() > 0 ? grad.weight.flat() : TensorView{},
            grad.bias.numel() > 0 ? grad.bias.flat() : TensorView{}};
  const TensorView block = directions->block(static_cast<int>(grad.layer));
  const std::int64_t weight = grad.weight.numel(), bias = grad.bias.numel();
  return {grad.layer, block.slice(0, 0, weight),
          bias > 0 ? block.slice(0, weight, bias) : TensorView{}};
}

void Preconditioner::Impl::unpack(const LayerGrad& grad) {
  if (!covered(grad.layer)) return;
  const LayerGrad from = target(grad);
  if (grad.weight.numel() > 0) ops::cast(ctx, from.weight, grad.weight.flat());
  if (grad.bias.numel() > 0) ops::cast(ctx, from.bias, grad.bias.flat());
}

void Preconditioner::Impl::precondition_layer(const LayerGrad& grad) {
  const LayerGrad at = target(grad);
  const int layer = static_cast<int>(grad.layer);
  if (!kl_clip || engine.owner(layer) != comm->rank())
    return engine.apply(layer, at.weight, at.bias);
  Scratch scratch(ctx);
  const auto kept = [&](TensorView x) {
    if (x.numel() == 0) return TensorView{};
    const TensorView copy = scratch.take({x.numel()}, x.dtype());
    ops::copy(ctx, x, copy);
    return copy;
  };
  const TensorView weight = kept(at.weight), bias = kept(at.bias);
  engine.apply(layer, at.weight, at.bias);
  kl_clip->add(weight, at.weight);
  kl_clip->add(bias, at.bias);
}

void Preconditioner::Impl::clip(const LayerGrad& grad, ConstTensorView factor) {
  const LayerGrad at = target(grad);
  scale_direction(ctx, factor, at.weight);
  scale_direction(ctx, factor, at.bias);
}

void Preconditioner::Impl::precondition(std::span<const LayerGrad> grads, double lr,
                                        StepReport& report) {
  engine.absorb(report);
  {
    const PhaseTimer timer(report.seconds.exchange, "exchange");
    parts.clear();
    add_shared_parts(engine, grid, false, parts);
    share->run(parts);
  }
  if (!report.updated) return;  // No layer has an inverse.
  {
    const PhaseTimer timer(report.seconds.update);
    if (kl_clip) kl_clip->begin();
    for (const LayerGrad& grad : grads)
      if (works(grad.layer) && covered(grad.layer)) precondition_layer(grad);
    if (kl_clip) {
      const ConstTensorView factor = kl_clip->factor(grid, engine.options().kl_clip, lr);
      if (ctx.device().is_cuda())
        ops::copy(ctx, factor, kl_told.host());
      else
        report.kl_factor = *factor.data<double>();
      for (const LayerGrad& grad : grads)
        if (works(grad.layer) && covered(grad.layer)) clip(grad, factor);
    }
  }
  if (!directions->needed()) return;
  const PhaseTimer timer(report.seconds.exchange, "exchange"), part(report.seconds.gather);
  directions->run();
  for (const LayerGrad& grad : grads) unpack(grad);
}

Preconditioner::Preconditioner(std::shared_ptr<comm::Communicator> comm, CurvatureOptions options,
                               Device device, ContextOptions context) {
  DKFAC_CHECK(comm != nullptr,
              "[preconditioner] the communicator is null; comm::make_self() is one");
  DKFAC_CHECK(comm->size() <= comm::kMaxBallots, "[preconditioner] ", comm->size(),
              " ranks; the vote is exact up to ", comm::kMaxBallots);
  impl_ = std::make_unique<Impl>(std::move(comm), options, device, context);
}
Preconditioner::~Preconditioner() = default;
Preconditioner::Preconditioner(Preconditioner&&) noexcept = default;
Preconditioner& Preconditioner::operator=(Preconditioner&&) noexcept = default;

LayerId Preconditioner::add_layer(std::string name, LayerSpec spec) {
  Engine& engine = impl_->engine;
  DKFAC_CHECK(!impl_->prepared, "[add_layer] layer '", name, "' comes after prepare()");
  bool exists = false;
  for (int i = 0; i < engine.layers(); ++i) exists = exists || engine.name(i) == name;
  check_new_name(name, exists);
  validate(spec, name);
  engine.add_layer(std::move(name), std::move(spec));
  return static_cast<LayerId>(engine.layers() - 1);
}

void Preconditioner::prepare() { impl_->prepare(); }

bool Preconditioner::wants_statistics() const { return impl_->engine.statistics_due(); }
bool Preconditioner::wants_input(LayerId layer) const { return impl_->engine.input_due(layer); }
bool Preconditioner::wants_grad_output(LayerId layer) const {
  return impl_->engine.output_due(layer);
}

void Preconditioner::record_input(LayerId layer, ConstTensorView input, Stream stream,
                                  RecordScale scale) {
  impl_->ensure_prepared();
  impl_->records.enter("record_input", stream);
  impl_->engine.record_input(layer, input, scale);
  impl_->records.leave(stream);
  impl_->pipeline->poll();
}

void Preconditioner::record_grad_output(LayerId layer, ConstTensorView grad_output, Stream stream,
                                        RecordScale scale) {
  impl_->ensure_prepared();
  impl_->records.enter("record_grad_output", stream);
  impl_->engine.record_grad_output(layer, grad_output, scale);
  impl_->records.leave(stream);
  impl_->pipeline->poll();
}

void Preconditioner::record_batch_norm(LayerId layer, ConstTensorView x, ConstTensorView mean,
                                       ConstTensorView inv_std, ConstTensorView grad_output,
                                       Stream stream, RecordScale scale) {
  impl_->ensure_prepared();
  impl_->records.enter("record_batch_norm", stream);
  impl_->engine.record_batch_norm(layer, x, mean, inv_std, grad_output, scale);
  impl_->records.leave(stream);
  impl_->pipeline->poll();
}

StepReport Preconditioner::step(std::span<const LayerGrad> grads, Stream stream,
                                const StepArgs& args) {
  Impl& impl = *impl_;
  impl.ensure_prepared();
  impl.enter("step", stream);
  impl.records.join();
  impl.check_grads(grads);
  const bool clipped = impl.engine.options().kl_clip > 0;
  DKFAC_CHECK(!clipped || (args.lr > 0 && std::isfinite(args.lr)), "[step] StepArgs::lr is ",
              args.lr, "; the KL clip needs the learning rate of the step, > 0");
  comm::check_vote(args.vote, impl.ctx.device());
  StepReport report;
  report.step = ++impl.steps;
  std::uint64_t before = 0;
  {
    const PhaseTimer timer(report.seconds.exchange, "exchange");
    for (const LayerGrad& grad : grads)
      if (impl.works(grad.layer)) impl.pack(grad);
    // A rank that votes against the step may have had no batch at all.
    if (impl.engine.statistics_due())
      impl.engine.require_records(args.vote.loss_nonfinite || args.vote.data_error);
    impl.pipeline->flush();
    comm::Ballot ballot{.caller = args.vote};
    if (clipped) ballot.hash = comm::mix_hash(ballot.hash, args.lr);
    impl.engine.fill_ballot(ballot);
    ballot.gradient_count = impl.nonfinite;
    impl.pipeline->submit(ballot);
    before = impl.grid.bytes();
    impl.engine.ask();
    const comm::Outcome outcome = impl.pipeline->outcome();
    if (outcome.result.numeric_failure > 0) impl.engine.throw_failure(outcome);
    impl.engine.hear(outcome, report);
    if (clipped) report.kl_factor = *impl.kl_told.numbers<double>();
    report.vote = outcome.result;
  }
  report.updated = report.vote.may_update();
  if (report.updated) impl.precondition(grads, args.lr, report);
  report.bytes = impl.pipeline->bytes() + impl.grid.bytes() - before;
  report.scratch_growths =
      impl.ctx.scratch_growths() + impl.records.scratch_growths() + impl.engine.scratch_growths();
  impl.engine.end_step(report);
  impl.begin_step();
  impl.leave(stream);
  return report;
}

LayerFactors Preconditioner::read_factors(LayerId layer) {
  DKFAC_CHECK(impl_->prepared, "[read_factors] comes before prepare()");
  return impl_->engine.read_factors(layer);
}

void Preconditioner::set_damping(double damping) { impl_->engine.set_damping(damping); }

void Preconditioner::set_curvature(const CurvatureSettings& settings) {
  if (impl_->engine.set_curvature(settings) && impl_->prepared) impl_->begin_step();
}

void Preconditioner::visit_state(StateVisitor& caller) {
  impl_->ensure_prepared();
  impl_->records.join();
  HostVisitor visitor(impl_->ctx, caller);
  visitor.integer("steps", Held::same, impl_->steps);
  impl_->engine.visit_state(visitor);
  impl_->begin_step();  // What is due may have changed.
}

const CurvatureOptions& Preconditioner::options() const { return impl_->engine.options(); }

std::string Preconditioner::describe() const {
  DKFAC_CHECK(impl_->prepared, "[describe] comes before prepare()");
  return impl_->engine.describe(
      {}, {{"gathered directions", static_cast<std::int64_t>(impl_->directions->bytes())},
           {"shared inverses", static_cast<std::int64_t>(impl_->share->bytes())}});
}

}  // namespace dkfac::kfac
