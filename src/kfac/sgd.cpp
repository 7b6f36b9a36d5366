#include <cmath>

#include "kfac/distributed_optimizer.h"
#include "kfac/first_order.h"
#include "kfac/phase_timer.h"
#include "kfac/velocity.h"

namespace dkfac::kfac {
namespace {

class Sgd final : public DistributedOptimizer {
 public:
  Sgd(std::shared_ptr<comm::Communicator> comm, const SgdOptions& options, Device device,
      ContextOptions context)
      : DistributedOptimizer(
            std::move(comm),
            {Recipients::all, options.loss_reduction, options.overlap, options.bucket_bytes},
            device, context),
        options_(options) {}

  [[nodiscard]] std::string_view name() const override { return "sgd"; }
  [[nodiscard]] std::string describe() const override {
    return detail::concat("sgd: momentum ", options_.momentum,
                          options_.nesterov ? " (Nesterov)" : "", ", weight decay ",
                          options_.weight_decay,
                          options_.momentum_correction ? ", momentum correction" : "");
  }

 private:
  [[nodiscard]] std::string options_text() const override {
    return detail::concat("momentum ", exact(options_.momentum), "\nnesterov ", options_.nesterov,
                          "\nweight_decay ", exact(options_.weight_decay), "\nmomentum_correction ",
                          options_.momentum_correction, "\nloss_reduction ",
                          static_cast<int>(options_.loss_reduction), "\noverlap ", options_.overlap,
                          "\nbucket_bytes ", options_.bucket_bytes, '\n');
  }
  void on_prepare() override { velocity_ = make_velocity(ctx_, layers_, dtype()); }
  void on_visit(StateVisitor& visitor) override {
    visitor.real("last_lr", Held::same, last_lr_);
    visit_velocity(visitor, Held::same, velocity_);
  }

  void update(const StepArgs& args, StepReport& report) override {
    const PhaseTimer timer(report.seconds.update);
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const ParameterLayer& layer = layers_[i];
      const TensorView g = gradient(static_cast<int>(i)), v = velocity_[i];
      if (layer.weight > 0)
        sgd_pass(pass(weight_rates(layer, args.lr, options_.weight_decay)),
                 g.slice(0, 0, layer.weight), v.slice(0, 0, layer.weight),
                 layer.params.weight.flat());
      if (layer.bias > 0)
        sgd_pass(pass(bias_rates(layer, args.lr, options_.weight_decay)),
                 g.slice(0, layer.weight, layer.bias), v.slice(0, layer.weight, layer.bias),
                 layer.params.bias.flat());
    }
    const bool rescaled = options_.momentum_correction && last_lr_ > 0;
    report.momentum = options_.momentum * (rescaled ? args.lr / last_lr_ : 1);
    last_lr_ = args.lr;
  }

  [[nodiscard]] SgdPass pass(Rates rates) const {
    return {.lr = rates.lr,
            .momentum = options_.momentum,
            .weight_decay = rates.weight_decay,
            .nesterov = options_.nesterov,
            .correction = options_.momentum_correction};
  }

  SgdOptions options_;
  std::vector<Tensor> velocity_;
  double last_lr_ = 0;
};

}  // namespace

void SgdOptions::validate() const {
  DKFAC_CHECK(momentum >= 0 && momentum < 1, "[sgd options] momentum is ", momentum,
              "; it must be in [0, 1)");
  DKFAC_CHECK(weight_decay >= 0 && std::isfinite(weight_decay), "[sgd options] weight_decay is ",
              weight_decay, "; it must be finite and >= 0");
  DKFAC_CHECK(bucket_bytes > 0, "[sgd options] bucket_bytes is ", bucket_bytes, "; it must be > 0");
}

std::unique_ptr<Optimizer> make_sgd(std::shared_ptr<comm::Communicator> comm, SgdOptions options,
                                    Device device, ContextOptions context) {
  options.validate();
  return std::make_unique<Sgd>(std::move(comm), options, device, context);
}

}  // namespace dkfac::kfac
