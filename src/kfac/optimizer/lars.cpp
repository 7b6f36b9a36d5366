#include <cmath>

#include "kfac/optimizer/momentum_optimizer.h"

namespace dkfac::kfac {
namespace {

class Lars final : public MomentumOptimizer<LarsOptions> {
 public:
  Lars(std::shared_ptr<comm::Communicator> comm, const LarsOptions& options, Device device,
       ContextOptions context)
      : MomentumOptimizer(std::move(comm), options, device, context) {}

  [[nodiscard]] std::string_view name() const override { return "lars"; }
  [[nodiscard]] std::string describe() const override {
    return detail::concat("lars: ", describe_common(), ", eta ", options_.eta, ", epsilon ",
                          options_.epsilon);
  }

 private:
  [[nodiscard]] std::string rule_text() const override {
    return detail::concat("eta ", exact(options_.eta), "\nepsilon ", exact(options_.epsilon), '\n');
  }
  double update_all(double lr, double momentum, UpdateTable& table) override {
    LarsOptions now = options_;
    now.momentum = momentum;
    lars_update(ctx_, table, now, lr);
    return momentum;
  }
};

void check(bool ok, const char* field, double value, const char* range) {
  DKFAC_CHECK(ok && std::isfinite(value), "[lars options] ", field, " is ", value, "; it must be ",
              range);
}

}  // namespace

void LarsOptions::validate() const {
  check_wire("lars options", "gradient_wire", gradient_wire);
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
