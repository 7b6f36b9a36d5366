#include <cmath>
#include <utility>

#include "kfac/optimizer/momentum_optimizer.h"

namespace dkfac::kfac {
namespace {

class Sgd final : public MomentumOptimizer<SgdOptions> {
 public:
  Sgd(std::shared_ptr<comm::Communicator> comm, const SgdOptions& options, Device device,
      ContextOptions context)
      : MomentumOptimizer(std::move(comm), options, device, context) {}

  [[nodiscard]] std::string_view name() const override { return "sgd"; }
  [[nodiscard]] std::string describe() const override {
    return detail::concat("sgd: ", describe_common(),
                          options_.momentum_correction ? ", momentum correction" : "");
  }

 private:
  [[nodiscard]] std::string rule_text() const override {
    return detail::concat("momentum_correction ", options_.momentum_correction, '\n');
  }
  void on_visit(StateVisitor& visitor) override {
    visitor.real("last_lr", Held::same, last_lr_);
    MomentumOptimizer::on_visit(visitor);
  }
  double update_all(double lr, double momentum, UpdateTable& table) override {
    sgd_update(ctx_, table,
               {.lr = lr,
                .momentum = momentum,
                .weight_decay = options_.weight_decay,
                .nesterov = options_.nesterov,
                .correction = options_.momentum_correction});
    const double last = std::exchange(last_lr_, lr);
    const bool rescaled = options_.momentum_correction && last > 0;
    return momentum * (rescaled ? lr / last : 1);
  }

  double last_lr_ = 0;
};

}  // namespace

void SgdOptions::validate() const {
  DKFAC_CHECK(momentum >= 0 && momentum < 1, "[sgd options] momentum is ", momentum,
              "; it must be in [0, 1)");
  DKFAC_CHECK(weight_decay >= 0 && std::isfinite(weight_decay), "[sgd options] weight_decay is ",
              weight_decay, "; it must be finite and >= 0");
  check_wire("sgd options", "gradient_wire", gradient_wire);
  DKFAC_CHECK(bucket_bytes > 0, "[sgd options] bucket_bytes is ", bucket_bytes, "; it must be > 0");
}

std::unique_ptr<Optimizer> make_sgd(std::shared_ptr<comm::Communicator> comm, SgdOptions options,
                                    Device device, ContextOptions context) {
  options.validate();
  return std::make_unique<Sgd>(std::move(comm), options, device, context);
}

}  // namespace dkfac::kfac
