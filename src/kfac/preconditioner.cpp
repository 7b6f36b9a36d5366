#include "dkfac/kfac/preconditioner.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "dkfac/core/ops.h"

#include "kfac/engine.h"
#include "kfac/gather.h"
#include "kfac/host.h"
#include "kfac/parameters.h"
#include "kfac/phase_timer.h"
#include "kfac/pipeline.h"

namespace dkfac::kfac {

struct Preconditioner::Impl {
  Impl(std::shared_ptr<comm::Communicator> communicator, const CurvatureOptions& options,
       Device device, ContextOptions context)
      : comm(std::move(communicator)),
        ctx(device, context),
        engine(ctx, comm, options),
        pipeline(comm, options.overlap) {
    require_host("preconditioner", device);
  }

  void prepare();
  void ensure_prepared() {
    if (!prepared) prepare();
  }
  void begin_step();
  void check_grads(std::span<const LayerGrad> grads);
  void pack(const LayerGrad& grad);
  void unpack(const LayerGrad& grad);
  void precondition(std::span<const LayerGrad> grads, StepReport& report);
  [[nodiscard]] bool owns(LayerId layer) const {
    return engine.owner(static_cast<int>(layer)) == comm->rank();
  }

  std::shared_ptr<comm::Communicator> comm;
  Context ctx;
  Engine engine;
  bool prepared = false;
  std::int64_t steps = 0;
  Tensor nonfinite;                // f32[1]
  std::vector<bool> seen;          // Layers among the gradients of this step.
  std::optional<Exchange> ballot;  // Carries the vote where no statistics do.
  std::optional<Gather> directions;
  Pipeline pipeline;  // After the buffers, so that it ends before they do.
};

void Preconditioner::Impl::prepare() {
  DKFAC_CHECK(!prepared, "[prepare] was called before");
  std::string text = detail::concat("preconditioner\n", exact(engine.options()));
  for (int i = 0; i < engine.layers(); ++i)
    text += registration_line(engine.name(i), engine.spec(i));
  comm::require_equal(*comm, text, "the preconditioner's layers and options");
  engine.prepare(kBallotElements);
  ballot.emplace(ctx, *comm, "vote", Recipients::all, std::vector<Slot>{}, engine.options().dtype,
                 engine.options().bucket_bytes, kBallotElements);
  std::vector<Slot> slots;
  for (int i = 0; i < engine.layers(); ++i) {
    const LayerSpec& spec = engine.spec(i);
    const bool covered = !std::holds_alternative<PlainSpec>(spec);
    slots.push_back({engine.owner(i), covered ? weight_numel(spec) + bias_numel(spec) : 0, 0});
  }
  directions.emplace(ctx, *comm, "preconditioned gradients", slots, engine.options().dtype);
  nonfinite = Tensor::zeros(ctx, {1});
  prepared = true;
  begin_step();
}

void Preconditioner::Impl::begin_step() {
  const std::array<Exchange*, 2> statistics{&engine.a_exchange(), &engine.g_exchange()};
  const std::array<Exchange*, 1> vote_only{&*ballot};
  if (engine.statistics_due())
    pipeline.begin(statistics);
  else
    pipeline.begin(vote_only);
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
    for (const bool bias : {false, true}) {
      const ConstTensorView view = bias ? grad.bias : grad.weight;
      const std::int64_t numel = bias ? bias_numel(spec) : weight_numel(spec);
      DKFAC_CHECK(view.numel() == numel && view.is_contiguous(), "[step] layer '", engine.name(i),
                  "': the gradient of its ", bias ? "bias" : "weight", " has ", view.numel(),
                  " elements; it must be contiguous with ", numel);
      require_host("step", view.device());
    }
  }
  for (int i = 0; i < engine.layers(); ++i)
    DKFAC_CHECK(
        seen[static_cast<std::size_t>(i)] || std::holds_alternative<PlainSpec>(engine.spec(i)),
        "[step] layer '", engine.name(i), "' has no gradient; pass those of all layers");
}

/// The owner's gradients -> its part of the gather buffer, checked on the way.
void Preconditioner::Impl::pack(const LayerGrad& grad) {
  const bool plain = std::holds_alternative<PlainSpec>(engine.spec(static_cast<int>(grad.layer)));
  std::int64_t at = 0;
  for (const TensorView& part : {grad.weight, grad.bias}) {
    if (part.numel() == 0) continue;
    if (plain) {
      ops::count_nonfinite(ctx, part, nonfinite);
      continue;
    }
    const TensorView out =
        directions->block(static_cast<int>(grad.layer)).slice(0, at, part.numel());
    at += part.numel();
    if (part.dtype() == out.dtype()) {
      ops::copy_checked(ctx, 1, part.flat(), out, nonfinite);
    } else {
      ops::count_nonfinite(ctx, part, nonfinite);
      ops::cast(ctx, part.flat(), out);
    }
  }
}

void Preconditioner::Impl::unpack(const LayerGrad& grad) {
  if (std::holds_alternative<PlainSpec>(engine.spec(static_cast<int>(grad.layer)))) return;
  std::int64_t at = 0;
  for (const TensorView& part : {grad.weight, grad.bias}) {
    if (part.numel() == 0) continue;
    ops::cast(ctx, directions->block(static_cast<int>(grad.layer)).slice(0, at, part.numel()),
              part.flat());
    at += part.numel();
  }
}

void Preconditioner::Impl::precondition(std::span<const LayerGrad> grads, StepReport& report) {
  engine.absorb(report);
  {
    const PhaseTimer timer(report.seconds.update);
    for (int i = 0; i < engine.layers(); ++i) {
      const LayerSpec& spec = engine.spec(i);
      if (!owns(static_cast<LayerId>(i)) || std::holds_alternative<PlainSpec>(spec)) continue;
      const std::int64_t weight = weight_numel(spec), bias = bias_numel(spec);
      const TensorView block = directions->block(i);
      engine.apply(i, block.slice(0, 0, weight),
                   bias > 0 ? block.slice(0, weight, bias) : TensorView{});
    }
  }
  const PhaseTimer timer(report.seconds.exchange, "exchange");
  directions->run(*comm);
  for (const LayerGrad& grad : grads) unpack(grad);
}

Preconditioner::Preconditioner(std::shared_ptr<comm::Communicator> comm, CurvatureOptions options,
                               Device device, ContextOptions context) {
  DKFAC_CHECK(comm != nullptr,
              "[preconditioner] the communicator is null; comm::make_self() is one");
  DKFAC_CHECK(comm->size() <= kMaxBallots, "[preconditioner] ", comm->size(),
              " ranks; the vote is exact up to ", kMaxBallots);
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

void Preconditioner::record_input(LayerId layer, ConstTensorView input, Stream stream,
                                  RecordScale scale) {
  impl_->ensure_prepared();
  join(stream);
  impl_->engine.record_input(layer, input, scale);
  impl_->pipeline.poll();
}

void Preconditioner::record_grad_output(LayerId layer, ConstTensorView grad_output, Stream stream,
                                        RecordScale scale) {
  impl_->ensure_prepared();
  join(stream);
  impl_->engine.record_grad_output(layer, grad_output, scale);
  impl_->pipeline.poll();
}

void Preconditioner::record_batch_norm(LayerId layer, ConstTensorView x, ConstTensorView mean,
                                       ConstTensorView inv_std, ConstTensorView grad_output,
                                       Stream stream, RecordScale scale) {
  impl_->ensure_prepared();
  join(stream);
  impl_->engine.record_batch_norm(layer, x, mean, inv_std, grad_output, scale);
  impl_->pipeline.poll();
}

StepReport Preconditioner::step(std::span<const LayerGrad> grads, Stream stream, Vote vote) {
  Impl& impl = *impl_;
  impl.ensure_prepared();
  join(stream);
  impl.check_grads(grads);
  StepReport report;
  report.step = ++impl.steps;
  {
    const PhaseTimer timer(report.seconds.exchange, "exchange");
    for (const LayerGrad& grad : grads)
      if (impl.owns(grad.layer)) impl.pack(grad);
    // A rank that votes against the step may have had no batch at all.
    if (impl.engine.statistics_due())
      impl.engine.require_records(vote.loss_nonfinite || vote.data_error);
    Ballot ballot{.caller = vote};
    impl.engine.fill_ballot(ballot);
    ballot.nonfinite_gradient = *impl.nonfinite.data<float>() != 0;
    const Outcome outcome = impl.pipeline.finish(impl.ctx, ballot);
    if (outcome.result.numeric_failure > 0) impl.engine.throw_failure(outcome);
    report.vote = outcome.result;
  }
  report.updated = report.vote.may_update();
  const std::uint64_t before = impl.comm->bytes();
  if (report.updated) impl.precondition(grads, report);
  report.bytes = impl.pipeline.bytes() + impl.comm->bytes() - before;
  report.scratch_growths = impl.ctx.scratch_growths();
  impl.engine.end_step(report.updated, report);
  impl.begin_step();
  return report;
}

void Preconditioner::set_damping(double damping) { impl_->engine.set_damping(damping); }
void Preconditioner::visit_state(StateVisitor& visitor) {
  impl_->ensure_prepared();
  visitor.integer("steps", Held::same, impl_->steps);
  impl_->engine.visit_state(visitor);
  impl_->begin_step();  // What is due may have changed.
}

const CurvatureOptions& Preconditioner::options() const { return impl_->engine.options(); }

std::string Preconditioner::describe() const {
  DKFAC_CHECK(impl_->prepared, "[describe] comes before prepare()");
  return impl_->engine.describe();
}

}  // namespace dkfac::kfac
