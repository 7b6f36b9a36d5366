#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dkfac/core/tensor.h"

#include "kfac/distributed_optimizer.h"
#include "kfac/parameters.h"
#include "kfac/phase_timer.h"

namespace dkfac::kfac {

/// First-order optimizers with one momentum buffer per parameter: gradients are summed everywhere,
/// and every rank updates all parameters, one after the other. `Options` is SgdOptions or alike.
template <class Options>
class MomentumOptimizer : public DistributedOptimizer {
 protected:
  MomentumOptimizer(std::shared_ptr<comm::Communicator> comm, const Options& options, Device device,
                    ContextOptions context)
      : DistributedOptimizer(std::move(comm),
                             {.recipients = Recipients::all,
                              .loss_reduction = options.loss_reduction,
                              .overlap = options.overlap,
                              .bucket_bytes = options.bucket_bytes,
                              .wire = options.gradient_wire},
                             device, context),
        options_(options) {}

  /// One parameter and its averaged gradient. `is_weight`: no bias, and no gamma of a BatchNorm.
  virtual void update_one(const Rates& rates, bool is_weight, ConstTensorView gradient,
                          TensorView velocity, TensorView parameter) const = 0;
  /// After all parameters; returns the momentum to report.
  virtual double finish_update(double /*lr*/) { return options_.momentum; }
  /// The options that a rule of its own adds to the common ones.
  [[nodiscard]] virtual std::string rule_text() const = 0;
  /// "momentum 0.9 (Nesterov), weight decay 0.001"
  [[nodiscard]] std::string describe_common() const {
    return detail::concat("momentum ", options_.momentum, options_.nesterov ? " (Nesterov)" : "",
                          ", weight decay ", options_.weight_decay);
  }

  void on_visit(StateVisitor& visitor) override { visit_velocity(visitor, Held::same, velocity_); }

  const Options options_;

 private:
  [[nodiscard]] std::string options_text() const final {
    return detail::concat("momentum ", exact(options_.momentum), "\nnesterov ", options_.nesterov,
                          "\nweight_decay ", exact(options_.weight_decay), '\n', rule_text(),
                          "loss_reduction ", static_cast<int>(options_.loss_reduction),
                          "\noverlap ", options_.overlap, "\nbucket_bytes ", options_.bucket_bytes,
                          "\ngradient_wire ", exact(options_.gradient_wire), '\n');
  }
  void on_prepare() final {
    for (const ParameterLayer& layer : layers_)
      velocity_.push_back(Tensor::zeros(ctx_, {layer.numel()}, dtype()));
  }
  void update(const StepArgs& args, StepReport& report) final {
    const PhaseTimer timer(report.seconds.update);
    const double decay = options_.weight_decay;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const ParameterLayer& layer = layers_[i];
      const TensorView g = gradient(static_cast<int>(i)), v = velocity_[i];
      const std::int64_t weight = layer.weight, bias = layer.bias;
      const bool is_weight = !std::holds_alternative<BatchNormSpec>(layer.spec);
      if (weight > 0)
        update_one(weight_rates(layer, args.lr, decay), is_weight, g.slice(0, 0, weight),
                   v.slice(0, 0, weight), layer.params.weight.flat());
      if (bias > 0)
        update_one(bias_rates(layer, args.lr, decay), false, g.slice(0, weight, bias),
                   v.slice(0, weight, bias), layer.params.bias.flat());
    }
    report.momentum = finish_update(args.lr);
  }

  std::vector<Tensor> velocity_;
};

}  // namespace dkfac::kfac
