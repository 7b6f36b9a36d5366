#include <cmath>
#include <utility>

#include "dkfac/core/ops.h"

#include "comm/collective/gather.h"
#include "comm/collective/mirror.h"
#include "kfac/curvature/engine.h"
#include "kfac/curvature/record_stream.h"
#include "kfac/curvature/share.h"
#include "kfac/optimizer/distributed_optimizer.h"
#include "kfac/optimizer/kl_clip.h"
#include "kfac/optimizer/updates.h"
#include "kfac/shared/phase_timer.h"

namespace dkfac::kfac {
namespace {

class Kfac final : public DistributedOptimizer {
 public:
  Kfac(std::shared_ptr<comm::Communicator> comm, const KfacOptions& options, Device device,
       ContextOptions context)
      : DistributedOptimizer(comm,
                             {.recipients = comm::Recipients::workers,
                              .loss_reduction = options.curvature.loss_reduction,
                              .overlap = options.curvature.overlap,
                              .bucket_bytes = options.curvature.bucket_bytes,
                              .worker_fraction = options.curvature.worker_fraction,
                              .wire = options.gradient_wire},
                             device, context),
        options_(options),
        records_(ctx_, options.curvature.records_stay, context),
        engine_(ctx_, comm, options.curvature) {
    engine_.record_on(records_.context());
  }
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
  [[nodiscard]] LayerFactors read_factors(LayerId layer) override {
    require_prepared("read_factors");
    return engine_.read_factors(layer);
  }

  void record_input(LayerId layer, ConstTensorView input, Stream stream,
                    RecordScale scale) override {
    require_prepared("record_input");
    records_.enter("record_input", stream);
    engine_.record_input(layer, input, scale);
    records_.leave(stream);
    poll();
  }
  void record_grad_output(LayerId layer, ConstTensorView grad_output, Stream stream,
                          RecordScale scale) override {
    require_prepared("record_grad_output");
    records_.enter("record_grad_output", stream);
    engine_.record_grad_output(layer, grad_output, scale);
    records_.leave(stream);
    poll();
  }
  void record_batch_norm(LayerId layer, ConstTensorView x, ConstTensorView mean,
                         ConstTensorView inv_std, ConstTensorView grad_output, Stream stream,
                         RecordScale scale) override {
    require_prepared("record_batch_norm");
    records_.enter("record_batch_norm", stream);
    engine_.record_batch_norm(layer, x, mean, inv_std, grad_output, scale);
    records_.leave(stream);
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
  void on_exchange() override;
  [[nodiscard]] int owner_of(int layer) const override { return engine_.owner(layer); }
  void add_active(std::vector<comm::Exchange*>& active) override {
    engine_.begin_step();
    engine_.add_active(active);
  }
  void on_records(bool forgive) override {
    records_.join();
    if (engine_.statistics_due()) engine_.require_records(forgive);
  }
  void on_ballot(comm::Ballot& ballot) override { engine_.fill_ballot(ballot); }
  void on_submitted() override { engine_.ask(); }
  void on_outcome(const comm::Outcome& outcome, StepReport& report) override {
    engine_.hear(outcome, report);
  }
  void on_failure(const comm::Outcome& outcome) const override { engine_.throw_failure(outcome); }
  void update(const StepArgs& args, StepReport& report) override;
  void on_step_end(StepReport& report) override {
    report.scratch_growths += records_.scratch_growths() + engine_.scratch_growths();
    engine_.end_step(report);
  }
  void on_visit(StateVisitor& visitor) override {
    records_.join();
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

  [[nodiscard]] double momentum_of(const StepArgs& args) const;
  /// Appends weight and bias of a layer that this rank works on.
  void add_layer_parts(int layer, std::vector<UpdatedPart>& parts);
  /// Gradients into directions. The factor of the KL clip; empty without one.
  [[nodiscard]] ConstTensorView precondition(double lr);
  void precondition_layer(int layer);
  void report_updated(StepReport& report);
  void gather_weights();
  [[nodiscard]] bool works(int layer) const { return grid_.works(engine_.owner(layer)); }
  /// Type in which weights travel, unless it is theirs.
  [[nodiscard]] bool has_masters() const {
    return options_.weight_wire.value_or(dtype()) != dtype();
  }

  KfacOptions options_;
  RecordStream records_;
  Engine engine_;
  // Of the layers that this rank works on.
  std::vector<Tensor> velocity_, masters_;
  std::vector<SharedPart> parts_;
  std::optional<Share> share_;
  std::optional<comm::Gather> weights_;
  UpdateTable table_;
  std::optional<KlClip> clip_;
  /// f64[2]: factor of the KL clip and weights saturated, of the last update.
  comm::Mirror updated_;
  double last_lr_ = 0;
};

void Kfac::on_prepare() {
  engine_.prepare(grid_, 0);
  std::vector<comm::Slot> slots;
  updated_ = comm::Mirror(ctx_, {2}, DType::f64);
  updated_.numbers<double>()[0] = 1;
  updated_.push(ctx_);
  const auto count = static_cast<std::int64_t>(layers_.size());
  if (options_.curvature.kl_clip > 0) clip_.emplace(ctx_, count);
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

double Kfac::momentum_of(const StepArgs& args) const {
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

void Kfac::add_layer_parts(int index, std::vector<UpdatedPart>& parts) {
  const auto i = static_cast<std::size_t>(index);
  const ParameterLayer& layer = layers_[i];
  const std::size_t first = parts.size();
  add_parts(layer, gradient(index), velocity_[i], parts);
  std::int64_t offset = 0;
  for (std::size_t p = first; p < parts.size(); ++p) {
    UpdatedPart& part = parts[p];
    if (masters_[i].is_set()) part.master = masters_[i].view().slice(0, offset, part.numel());
    if (weights_->needed()) part.block = weights_->block(index).slice(0, offset, part.numel());
    offset += part.numel();
  }
  // A weight that is frozen is not to be rescaled either.
  if (layer.weight > 0 && has_factors(layer.spec) && layer.params.weight_lr > 0)
    parts[first].d_out = g_dim(layer.spec) * factor_groups(layer.spec);
}

void Kfac::on_exchange() {
  std::vector<UpdatedPart> parts;
  for (int i = 0; i < static_cast<int>(layers_.size()); ++i)
    if (works(i)) add_layer_parts(i, parts);
  table_ = make_update_table(ctx_, dtype(), std::move(parts));
}

void Kfac::precondition_layer(int index) {
  const ParameterLayer& layer = layers_[static_cast<std::size_t>(index)];
  const TensorView g = gradient(index);
  const TensorView weight = g.slice(0, 0, layer.weight);
  const TensorView bias = layer.bias > 0 ? g.slice(0, layer.weight, layer.bias) : TensorView{};
  const bool counted = clip_ && engine_.owner(index) == comm_->rank();
  if (!counted) return engine_.apply(index, weight, bias);
  Scratch scratch(ctx_);
  const TensorView before = scratch.take({layer.numel()}, dtype());
  ops::copy(ctx_, g, before);
  engine_.apply(index, weight, bias);
  clip_->add(before, g);
}

ConstTensorView Kfac::precondition(double lr) {
  if (clip_) clip_->begin();
  for (std::size_t i = 0; i < layers_.size(); ++i)
    if (works(static_cast<int>(i)) && engine_.covered(static_cast<int>(i)))
      precondition_layer(static_cast<int>(i));
  return clip_ ? clip_->factor(grid_, options_.curvature.kl_clip, lr) : ConstTensorView{};
}

/// What the host has of the last update that it has waited for.
void Kfac::report_updated(StepReport& report) {
  const double* numbers = updated_.numbers<double>();
  report.kl_factor = numbers[0];
  report.saturated = static_cast<std::int64_t>(numbers[1]);
}

void Kfac::gather_weights() {
  if (!weights_->needed()) return;
  weights_->run();
  // The workers, too, read what was gathered, so that all ranks hold the same bits.
  for (std::size_t i = 0; i < layers_.size(); ++i)
    unpack_parameters(ctx_, weights_->block(static_cast<int>(i)), layers_[i]);
}

void Kfac::update(const StepArgs& args, StepReport& report) {
  if (ctx_.device().is_cuda()) report_updated(report);
  engine_.absorb(report);
  {
    const PhaseTimer timer(report.seconds.exchange, "exchange");
    parts_.clear();
    add_shared_parts(engine_, grid_, false, parts_);
    share_->run(parts_);
  }
  if (!report.updated) return;  // No layer has an inverse.
  {
    const PhaseTimer timer(report.seconds.update);
    const ConstTensorView clip = precondition(args.lr);
    report.momentum = momentum_of(args);
    kfac_update(ctx_, table_,
                {.pass = {.lr = args.lr,
                          .momentum = report.momentum,
                          .weight_decay = options_.weight_decay,
                          .rule = options_.momentum_rule},
                 .rescale = options_.rescale,
                 .clip = clip,
                 .wire = options_.weight_wire,
                 .saturated = updated_.device().slice(0, 1, 1)});
    if (clip_) ops::copy(ctx_, clip, updated_.device().slice(0, 0, 1));
    if (!ctx_.device().is_cuda()) report_updated(report);
    updated_.fetch(ctx_);
    last_lr_ = args.lr;
  }
  const PhaseTimer timer(report.seconds.exchange, "exchange"), part(report.seconds.gather);
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
