#include <cmath>

#include "kfac/distributed_optimizer.h"
#include "kfac/first_order.h"
#include "kfac/phase_timer.h"
#include "kfac/velocity.h"

namespace dkfac::kfac {
namespace {

class Lars final : public DistributedOptimizer {
 public:
  Lars(std::shared_ptr<comm::Communicator> comm, const LarsOptions& options, Device device,
       ContextOptions context)
      : DistributedOptimizer(
            std::move(comm),
            {Recipients::all, options.loss_reduction, options.overlap, options.bucket_bytes},
            device, context),
        options_(options) {}

  [[nodiscard]] std::string_view name() const override { return "lars"; }
  [[nodiscard]] std::string describe() const override {
    return detail::concat("lars: momentum ", options_.momentum,
                          options_.nesterov ? " (Nesterov)" : "", ", weight decay ",
                          options_.weight_decay, ", eta ", options_.eta, ", epsilon ",
                          options_.epsilon);
  }

 private:
  [[nodiscard]] std::string options_text() const override {
    return detail::concat(
        "momentum ", exact(options_.momentum), "\nnesterov ", options_.nesterov, "\nweight_decay ",
        exact(options_.weight_decay), "\neta ", exact(options_.eta), "\nepsilon ",
        exact(options_.epsilon), "\nloss_reduction ", static_cast<int>(options_.loss_reduction),
        "\noverlap ", options_.overlap, "\nbucket_bytes ", options_.bucket_bytes, '\n');
  }
  void on_prepare() override { velocity_ = make_velocity(ctx_, layers_, dtype()); }
  void on_visit(StateVisitor& visitor) override { visit_velocity(visitor, Held::same, velocity_); }

  void update(const StepArgs& args, StepReport& report) override {
    const PhaseTimer timer(report.seconds.update);
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const ParameterLayer& layer = layers_[i];
      const TensorView g = gradient(static_cast<int>(i)), v = velocity_[i];
      if (layer.weight > 0)
        update_one(weight_rates(layer, args.lr, options_.weight_decay), adapts(layer.spec),
                   g.slice(0, 0, layer.weight), v.slice(0, 0, layer.weight),
                   layer.params.weight.flat());
      if (layer.bias > 0)
        update_one(bias_rates(layer, args.lr, options_.weight_decay), false,
                   g.slice(0, layer.weight, layer.bias), v.slice(0, layer.weight, layer.bias),
                   layer.params.bias.flat());
    }
    report.momentum = options_.momentum;
  }

  void update_one(Rates rates, bool adapted, ConstTensorView gradient, TensorView velocity,
                  TensorView weight) const {
    LarsPass pass{.rate = rates.lr,
                  .momentum = options_.momentum,
                  .weight_decay = rates.weight_decay,
                  .nesterov = options_.nesterov};
    if (adapted) pass.rate *= trust_ratio(options_, l2_norm(weight), l2_norm(gradient));
    lars_pass(pass, gradient, velocity, weight);
  }

  LarsOptions options_;
  std::vector<Tensor> velocity_;
};

void check(bool ok, const char* field, double value, const char* range) {
  DKFAC_CHECK(ok && std::isfinite(value), "[lars options] ", field, " is ", value, "; it must be ",
              range);
}

}  // namespace

void LarsOptions::validate() const {
  check(momentum >= 0 && momentum < 1, "momentum", momentum, "in [0, 1)");
  check(weight_decay >= 0, "weight_decay", weight_decay, "finite and >= 0");
  check(eta > 0, "eta", eta, "finite and > 0");
  check(epsilon >= 0, "epsilon", epsilon, "finite and >= 0");
  check(bucket_bytes > 0, "bucket_bytes", static_cast<double>(bucket_bytes), "> 0");
}

std::unique_ptr<Optimizer> make_lars(std::shared_ptr<comm::Communicator> comm, LarsOptions options,
                                     Device device, ContextOptions context) {
  options.validate();
  return std::make_unique<Lars>(std::move(comm), options, device, context);
}

}  // namespace dkfac::kfac
