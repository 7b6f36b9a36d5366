#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dkfac/core/tensor.h"

#include "kfac/optimizer/distributed_optimizer.h"
#include "kfac/optimizer/parameters.h"
#include "kfac/optimizer/updates.h"
#include "kfac/shared/phase_timer.h"

namespace dkfac::kfac {

/// First-order optimizers with one momentum buffer per parameter: gradients are summed everywhere,
/// and every rank updates all parameters. `Options` is SgdOptions or alike.
template <class Options>
class MomentumOptimizer : public DistributedOptimizer {
 protected:
  MomentumOptimizer(std::shared_ptr<comm::Communicator> comm, const Options& options, Device device,
                    ContextOptions context)
      : DistributedOptimizer(std::move(comm),
                             {.recipients = comm::Recipients::all,
                              .loss_reduction = options.loss_reduction,
                              .overlap = options.overlap,
                              .bucket_bytes = options.bucket_bytes,
                              .wire = options.gradient_wire},
                             device, context),
        options_(options) {}

  /// All parameters, with their averaged gradients; returns the momentum to report.
  virtual double update_all(double lr, double momentum, UpdateTable& table) = 0;
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
  void on_exchange() final {
    std::vector<UpdatedPart> parts;
    for (std::size_t i = 0; i < layers_.size(); ++i)
      add_parts(layers_[i], gradient(static_cast<int>(i)), velocity_[i], parts);
    table_ = make_update_table(ctx_, dtype(), std::move(parts));
  }
  void update(const StepArgs& args, StepReport& report) final {
    const PhaseTimer timer(report.seconds.update);
    report.momentum = update_all(args.lr, args.momentum.value_or(options_.momentum), table_);
  }

  std::vector<Tensor> velocity_;
  UpdateTable table_;
};

}  // namespace dkfac::kfac
