#include <cmath>

#include "kfac/distributed_optimizer.h"
#include "kfac/engine.h"
#include "kfac/first_order.h"
#include "kfac/gather.h"
#include "kfac/phase_timer.h"

namespace dkfac::kfac {
namespace {

class Kfac final : public DistributedOptimizer {
 public:
  Kfac(std::shared_ptr<comm::Communicator> comm, const KfacOptions& options, Device device,
       ContextOptions context)
      : DistributedOptimizer(comm,
                             {Recipients::owners, options.curvature.loss_reduction,
                              options.curvature.overlap, options.curvature.bucket_bytes},
                             device, context),
        options_(options),
        engine_(ctx_, comm, options.curvature) {}
  ~Kfac() override { stop(); }  // statistics must not be under way when the engine goes

  [[nodiscard]] std::string_view name() const override { return "kfac"; }
  [[nodiscard]] std::string describe() const override {
    require_prepared("describe");
    return engine_.describe();
  }
  [[nodiscard]] bool wants_statistics() const override { return engine_.statistics_due(); }

  void record_input(LayerId layer, ConstTensorView input, Stream stream,
                    RecordScale scale) override {
    require_prepared("record_input");
    join(stream);
    engine_.record_input(layer, input, scale);
    poll();
  }
  void record_grad_output(LayerId layer, ConstTensorView grad_output, Stream stream,
                          RecordScale scale) override {
    require_prepared("record_grad_output");
    join(stream);
    engine_.record_grad_output(layer, grad_output, scale);
    poll();
  }
  void record_batch_norm(LayerId layer, ConstTensorView x, ConstTensorView mean,
                         ConstTensorView inv_std, ConstTensorView grad_output, Stream stream,
                         RecordScale scale) override {
    require_prepared("record_batch_norm");
    join(stream);
    engine_.record_batch_norm(layer, x, mean, inv_std, grad_output, scale);
    poll();
  }

 private:
  [[nodiscard]] std::string options_text() const override {
    return detail::concat(exact(options_.curvature), "momentum ", exact(options_.momentum),
                          "\nmomentum_rule ", static_cast<int>(options_.momentum_rule),
                          "\ninitial_lr ", exact(options_.initial_lr), "\nrescale ",
                          static_cast<int>(options_.rescale), "\nweight_decay ",
                          exact(options_.weight_decay), '\n');
  }
  void on_add(const ParameterLayer& layer) override { engine_.add_layer(layer.name, layer.spec); }
  void on_prepare() override;
  [[nodiscard]] int owner_of(int layer) const override { return engine_.owner(layer); }
  void add_active(std::vector<Exchange*>& active) override {
    if (!engine_.statistics_due()) return;
    active.push_back(&engine_.a_exchange());
    active.push_back(&engine_.g_exchange());
  }
  void on_ballot(Ballot& ballot, bool forgive) override {
    if (engine_.statistics_due()) engine_.require_records(forgive);
    engine_.fill_ballot(ballot);
  }
  void on_failure(const Outcome& outcome) const override { engine_.throw_failure(outcome); }
  void update(const StepArgs& args, StepReport& report) override;
  void on_step_end(StepReport& report) override { engine_.end_step(report.updated, report); }
  void on_visit(StateVisitor& visitor) override {
    visitor.real("last_lr", Held::same, last_lr_);
    visit_velocity(visitor, Held::owner, velocity_);
    engine_.visit_state(visitor);
  }

  [[nodiscard]] double momentum_at(double lr) const;
  /// pass: the rates of a parameter whose multipliers are 1.
  void update_layer(int layer, const KfacPass& pass);
  void update_part(const KfacPass& pass, Rescale rule, std::int64_t d_out, ConstTensorView u,
                   ConstTensorView weight, TensorView velocity, TensorView out);

  KfacOptions options_;
  Engine engine_;
  std::vector<Tensor> velocity_;  ///< Of owned layers only.
  std::optional<Gather> weights_;
  double last_lr_ = 0;
};

void Kfac::on_prepare() {
  engine_.prepare(0);
  std::vector<Slot> slots;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const int owner = engine_.owner(static_cast<int>(i));
    slots.push_back({owner, layers_[i].numel(), 0});
    velocity_.push_back(owner == comm_->rank() ? Tensor::zeros(ctx_, {layers_[i].numel()}, dtype())
                                               : Tensor{});
  }
  weights_.emplace(ctx_, *comm_, "weights", slots, dtype());
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

void Kfac::update_part(const KfacPass& pass, Rescale rule, std::int64_t d_out, ConstTensorView u,
                       ConstTensorView weight, TensorView velocity, TensorView out) {
  kfac_pass(pass, u, weight, velocity, out);
  rescale(rule, d_out, out);
  if (pass.rule == MomentumRule::paper) finish_paper_momentum(weight, out, velocity);
}

void Kfac::update_layer(int index, const KfacPass& pass) {
  const auto i = static_cast<std::size_t>(index);
  const ParameterLayer& layer = layers_[i];
  const TensorView g = gradient(index), v = velocity_[i], out = weights_->block(index);
  const TensorView weight = g.slice(0, 0, layer.weight);
  const TensorView bias = layer.bias > 0 ? g.slice(0, layer.weight, layer.bias) : TensorView{};
  engine_.apply(index, weight, bias);
  const auto with = [&pass](Rates rates) {
    KfacPass part = pass;
    part.lr = rates.lr;
    part.weight_decay = rates.weight_decay;
    return part;
  };
  if (layer.weight > 0) {
    // A weight that is frozen is not to be rescaled either.
    const bool rescaled = has_factors(layer.spec) && layer.params.weight_lr > 0;
    const Rescale rule = rescaled ? options_.rescale : Rescale::off;
    update_part(with(weight_rates(layer, pass.lr, pass.weight_decay)), rule, g_dim(layer.spec),
                weight, layer.params.weight.flat(), v.slice(0, 0, layer.weight),
                out.slice(0, 0, layer.weight));
  }
  if (layer.bias == 0) return;
  update_part(with(bias_rates(layer, pass.lr, pass.weight_decay)), Rescale::off, 0, bias,
              layer.params.bias.flat(), v.slice(0, layer.weight, layer.bias),
              out.slice(0, layer.weight, layer.bias));
}

void Kfac::update(const StepArgs& args, StepReport& report) {
  engine_.absorb(report);
  const int count = static_cast<int>(layers_.size());
  {
    const PhaseTimer timer(report.seconds.update);
    report.momentum = momentum_at(args.lr);
    const KfacPass pass{.lr = args.lr,
                        .momentum = report.momentum,
                        .weight_decay = options_.weight_decay,
                        .rule = options_.momentum_rule};
    for (int i = 0; i < count; ++i)
      if (engine_.owner(i) == comm_->rank()) update_layer(i, pass);
    last_lr_ = args.lr;
  }
  const PhaseTimer timer(report.seconds.exchange, "exchange");
  weights_->run(*comm_);
  // The owner, too, reads what was gathered, so that all ranks hold the same bits.
  for (int i = 0; i < count; ++i)
    unpack_parameters(ctx_, weights_->block(i), layers_[static_cast<std::size_t>(i)]);
}

}  // namespace

void KfacOptions::validate() const {
  curvature.validate();
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
