#include <cmath>
#include <utility>

#include "dkfac/core/half.h"
#include "dkfac/core/ops.h"

#include "kfac/distributed_optimizer.h"
#include "kfac/engine.h"
#include "kfac/first_order.h"
#include "kfac/gather.h"
#include "kfac/kl_clip.h"
#include "kfac/phase_timer.h"
#include "kfac/share.h"

namespace dkfac::kfac {
namespace {

class Kfac final : public DistributedOptimizer {
 public:
  Kfac(std::shared_ptr<comm::Communicator> comm, const KfacOptions& options, Device device,
       ContextOptions context)
      : DistributedOptimizer(comm,
                             {.recipients = Recipients::workers,
                              .loss_reduction = options.curvature.loss_reduction,
                              .overlap = options.curvature.overlap,
                              .bucket_bytes = options.curvature.bucket_bytes,
                              .worker_fraction = options.curvature.worker_fraction,
                              .wire = options.gradient_wire},
                             device, context),
        options_(options),
        engine_(ctx_, comm, options.curvature) {}
  ~Kfac() override { stop(); }  // statistics must not be under way when the engine goes

  [[nodiscard]] std::string_view name() const override { return "kfac"; }
  [[nodiscard]] std::string describe() const override {
    require_prepared("describe");
    const auto element = static_cast<std::int64_t>(size_of(dtype()));
    std::vector<NamedBytes> buffers = gradient_buffers();
    buffers.push_back({"gathered weights", static_cast<std::int64_t>(weights_->bytes())});
    buffers.push_back({"shared inverses", static_cast<std::int64_t>(share_->bytes())});
    return engine_.describe({.momentum = element, .masters = has_masters() ? element : 0},
                            std::move(buffers));
  }
  [[nodiscard]] bool wants_statistics() const override { return engine_.statistics_due(); }
  [[nodiscard]] bool wants_input(LayerId layer) const override { return engine_.input_due(layer); }
  [[nodiscard]] bool wants_grad_output(LayerId layer) const override {
    return engine_.output_due(layer);
  }
  void set_curvature(const CurvatureSettings& settings) override {
    if (engine_.set_curvature(settings)) begin_again();
  }

  void record_input(LayerId layer, ConstTensorView input, Stream stream,
                    RecordScale scale) override {
    require_prepared("record_input");
    enter("record_input", stream);
    engine_.record_input(layer, input, scale);
    leave(stream);
    poll();
  }
  void record_grad_output(LayerId layer, ConstTensorView grad_output, Stream stream,
                          RecordScale scale) override {
    require_prepared("record_grad_output");
    enter("record_grad_output", stream);
    engine_.record_grad_output(layer, grad_output, scale);
    leave(stream);
    poll();
  }
  void record_batch_norm(LayerId layer, ConstTensorView x, ConstTensorView mean,
                         ConstTensorView inv_std, ConstTensorView grad_output, Stream stream,
                         RecordScale scale) override {
    require_prepared("record_batch_norm");
    enter("record_batch_norm", stream);
    engine_.record_batch_norm(layer, x, mean, inv_std, grad_output, scale);
    leave(stream);
    poll();
  }

 private:
  [[nodiscard]] std::string options_text() const override {
    return detail::concat(
        exact(options_.curvature), "momentum ", exact(options_.momentum), "\nmomentum_rule ",
        static_cast<int>(options_.momentum_rule), "\ninitial_lr ", exact(options_.initial_lr),
        "\nrescale ", static_cast<int>(options_.rescale), "\nweight_decay ",
        exact(options_.weight_decay), "\ngradient_wire ", exact(options_.gradient_wire),
        "\nweight_wire ", exact(options_.weight_wire), '\n');
  }
  void on_add(const ParameterLayer& layer) override { engine_.add_layer(layer.name, layer.spec); }
  void on_prepare() override;
  [[nodiscard]] int owner_of(int layer) const override { return engine_.owner(layer); }
  void add_active(std::vector<Exchange*>& active) override {
    engine_.begin_step();
    engine_.add_active(active);
  }
  void on_records(bool forgive) override {
    if (engine_.statistics_due()) engine_.require_records(forgive);
  }
  void on_ballot(Ballot& ballot) override { engine_.fill_ballot(ballot); }
  void on_failure(const Outcome& outcome) const override { engine_.throw_failure(outcome); }
  void update(const StepArgs& args, StepReport& report) override;
  void on_step_end(StepReport& report) override { engine_.end_step(report.updated, report); }
  void on_visit(StateVisitor& visitor) override {
    visitor.real("last_lr", Held::same, last_lr_);
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const Held held =
          engine_.owner(static_cast<int>(i)) == comm_->rank() ? Held::owner : Held::copy;
      const std::string& layer = layers_[i].name;
      if (velocity_[i].is_set()) visitor.tensor(layer + ".velocity", held, velocity_[i]);
      if (masters_[i].is_set()) visitor.tensor(layer + ".master", held, masters_[i]);
    }
    engine_.visit_state(visitor);
  }

  [[nodiscard]] double momentum_at(double lr) const;
  /// pass: the rates of a parameter whose multipliers are 1.
  void update_layer(int layer, const KfacPass& pass);
  /// Elements of x that the wire of weights turns into infinities.
  [[nodiscard]] std::int64_t past_wire(ConstTensorView x);
  /// `part` of the layer's parameter: its gradient's slot, the momentum and the masters have both.
  void update_part(const KfacPass& pass, Rescale rule, int layer, bool bias);
  void precondition(double lr, StepReport& report);
  void precondition_layer(int layer, KlSum* sum);
  void gather_weights();
  [[nodiscard]] bool works(int layer) const { return grid_.works(engine_.owner(layer)); }
  /// Type in which weights travel, unless it is theirs.
  [[nodiscard]] bool has_masters() const {
    return options_.weight_wire.value_or(dtype()) != dtype();
  }

  KfacOptions options_;
  Engine engine_;
  // Of the layers that this rank works on.
  std::vector<Tensor> velocity_, masters_;
  std::vector<SharedPart> parts_;
  std::optional<Share> share_;
  std::optional<Gather> weights_;
  Tensor underflow_;            ///< f32[1]; of weights that round to 0, which nobody asks for.
  std::int64_t saturated_ = 0;  ///< In this step.
  double last_lr_ = 0;
};

void Kfac::on_prepare() {
  engine_.prepare(grid_, 0);
  std::vector<Slot> slots;
  underflow_ = Tensor::zeros(ctx_, {1});
  velocity_.resize(layers_.size());
  masters_.resize(layers_.size());
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const int index = static_cast<int>(i);
    slots.push_back({engine_.owner(index), layers_[i].numel(), 0});
    if (!works(index)) continue;
    velocity_[i] = Tensor::zeros(ctx_, {layers_[i].numel()}, dtype());
    if (!has_masters()) continue;
    masters_[i] = Tensor::zeros(ctx_, {layers_[i].numel()}, dtype());
    pack_parameters(ctx_, layers_[i], masters_[i]);
  }
  weights_.emplace(ctx_, grid_, "weights", std::move(slots),
                   options_.weight_wire.value_or(dtype()));
  add_shared_parts(engine_, grid_, true, parts_);
  share_.emplace(ctx_, grid_, options_.curvature.dtype, parts_);
}

double Kfac::momentum_at(double lr) const {
  switch (options_.momentum_rule) {
    case MomentumRule::constant:
      return options_.momentum;
    case MomentumRule::corrected:
      return lr < last_lr_ ? options_.momentum * lr / last_lr_ : options_.momentum;
    case MomentumRule::paper:
      return options_.momentum / options_.initial_lr * lr;
  }
  return options_.momentum;
}

std::int64_t Kfac::past_wire(ConstTensorView x) {
  double largest = 0;
  ops::max_abs(ctx_, x, view_of(&largest, {1}));
  if (largest <= static_cast<double>(kMaxF16)) return 0;  // f16 has the least range
  Scratch scratch(ctx_);
  const TensorView narrow = scratch.take(x.shape(), *options_.weight_wire);
  const TensorView back = scratch.take(x.shape(), x.dtype());
  float count = 0;
  ops::cast(ctx_, x, narrow);
  ops::cast(ctx_, narrow, back);
  ops::count_nonfinite(ctx_, back, view_of(&count, {1}));
  return static_cast<std::int64_t>(count);
}

void Kfac::update_part(const KfacPass& pass, Rescale rule, int index, bool bias) {
  const auto i = static_cast<std::size_t>(index);
  const ParameterLayer& layer = layers_[i];
  const TensorView parameter = (bias ? layer.params.bias : layer.params.weight).flat();
  const auto part = [&](TensorView whole) {
    return whole.slice(0, bias ? layer.weight : 0, parameter.numel());
  };
  const TensorView velocity = part(velocity_[i]);
  const TensorView block = weights_->needed() ? part(weights_->block(index)) : TensorView{};
  const bool mastered = masters_[i].is_set();
  // Without masters the new weight goes straight to where all ranks will read it.
  const TensorView from = mastered ? part(masters_[i]) : parameter;
  const TensorView out = mastered || !weights_->needed() ? from : block;
  kfac_pass(pass, part(gradient(index)), from, velocity, out);
  rescale(rule, g_dim(layer.spec) * factor_groups(layer.spec), out);
  if (pass.rule == MomentumRule::paper) finish_paper_momentum(out, velocity);
  if (!mastered) return;
  saturated_ += past_wire(out);
  ops::round_to(ctx_, *options_.weight_wire, 1, out, parameter, underflow_);
  if (!block.empty()) ops::cast(ctx_, parameter, block);
}

void Kfac::update_layer(int index, const KfacPass& pass) {
  const ParameterLayer& layer = layers_[static_cast<std::size_t>(index)];
  const auto with = [&pass](Rates rates) {
    KfacPass part = pass;
    part.lr = rates.lr;
    part.weight_decay = rates.weight_decay;
    return part;
  };
  if (layer.weight > 0) {
    // A weight that is frozen is not to be rescaled either.
    const bool rescaled = has_factors(layer.spec) && layer.params.weight_lr > 0;
    update_part(with(weight_rates(layer, pass.lr, pass.weight_decay)),
                rescaled ? options_.rescale : Rescale::off, index, false);
  }
  if (layer.bias > 0)
    update_part(with(bias_rates(layer, pass.lr, pass.weight_decay)), Rescale::off, index, true);
}

void Kfac::precondition_layer(int index, KlSum* sum) {
  const ParameterLayer& layer = layers_[static_cast<std::size_t>(index)];
  const TensorView g = gradient(index);
  const TensorView weight = g.slice(0, 0, layer.weight);
  const TensorView bias = layer.bias > 0 ? g.slice(0, layer.weight, layer.bias) : TensorView{};
  const bool counted = sum != nullptr && engine_.owner(index) == comm_->rank();
  if (!counted) return engine_.apply(index, weight, bias);
  Scratch scratch(ctx_);
  const TensorView before = scratch.take({layer.numel()}, dtype());
  ops::copy(ctx_, g, before);
  engine_.apply(index, weight, bias);
  sum->add(before, g);
}

void Kfac::precondition(double lr, StepReport& report) {
  const double kappa = options_.curvature.kl_clip;
  const auto covered = [this](int i) {
    return works(i) &&
           !std::holds_alternative<PlainSpec>(layers_[static_cast<std::size_t>(i)].spec);
  };
  const int count = static_cast<int>(layers_.size());
  KlSum sum(ctx_);
  for (int i = 0; i < count; ++i)
    if (covered(i)) precondition_layer(i, kappa > 0 ? &sum : nullptr);
  if (kappa == 0) return;
  report.kl_factor = kl_factor(kappa, lr, sum.total(grid_));
  for (int i = 0; i < count; ++i)
    if (covered(i)) scale_direction(report.kl_factor, gradient(i));
}

void Kfac::gather_weights() {
  if (!weights_->needed()) return;
  weights_->run();
  // The workers, too, read what was gathered, so that all ranks hold the same bits.
  for (std::size_t i = 0; i < layers_.size(); ++i)
    unpack_parameters(ctx_, weights_->block(static_cast<int>(i)), layers_[i]);
}

void Kfac::update(const StepArgs& args, StepReport& report) {
  engine_.absorb(report);
  {
    const PhaseTimer timer(report.seconds.exchange, "exchange");
    parts_.clear();
    add_shared_parts(engine_, grid_, false, parts_);
    share_->run(parts_);
  }
  {
    const PhaseTimer timer(report.seconds.update);
    precondition(args.lr, report);
    report.momentum = momentum_at(args.lr);
    const KfacPass pass{.lr = args.lr,
                        .momentum = report.momentum,
                        .weight_decay = options_.weight_decay,
                        .rule = options_.momentum_rule};
    saturated_ = 0;
    for (int i = 0; i < static_cast<int>(layers_.size()); ++i)
      if (works(i)) update_layer(i, pass);
    report.saturated = saturated_;
    last_lr_ = args.lr;
  }
  const PhaseTimer timer(report.seconds.exchange, "exchange");
  gather_weights();
}

}  // namespace

void KfacOptions::validate() const {
  curvature.validate();
  check_wire("kfac options", "gradient_wire", gradient_wire);
  check_wire("kfac options", "weight_wire", weight_wire);
  DKFAC_CHECK(momentum >= 0 && momentum < 1, "[kfac options] momentum is ", momentum,
              "; it must be in [0, 1)");
  DKFAC_CHECK(weight_decay >= 0 && std::isfinite(weight_decay), "[kfac options] weight_decay is ",
              weight_decay, "; it must be finite and >= 0");
  DKFAC_CHECK(momentum_rule != MomentumRule::paper || (initial_lr > 0 && std::isfinite(initial_lr)),
              "[kfac options] initial_lr is ", initial_lr,
              "; the paper's momentum rule divides by it, so it must be > 0");
}

std::unique_ptr<Optimizer> make_kfac(std::shared_ptr<comm::Communicator> comm, KfacOptions options,
                                     Device device, ContextOptions context) {
  options.validate();
  return std::make_unique<Kfac>(std::move(comm), options, device, context);
}

}  // namespace dkfac::kfac
