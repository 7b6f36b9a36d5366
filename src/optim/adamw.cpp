#include <array>
#include <cmath>

#include "optim/first_order.h"

namespace dkfac::optim {
namespace {

struct Adamw {
  static constexpr std::string_view kName = "adamw";
  static constexpr std::array<std::string_view, 2> kSlots{"first_moment", "second_moment"};
  AdamwOptions options;
  /// Products of the betas of all updates: beta^t where they do not change.
  double beta1_power = 1, beta2_power = 1;

  [[nodiscard]] std::string description() const {
    const auto& o = options;
    return detail::concat("betas ", o.beta1, " and ", o.beta2, ", epsilon ", o.epsilon,
                          ", decoupled weight decay ", o.weight_decay);
  }
  [[nodiscard]] std::string options_text() const {
    const auto& o = options;
    return detail::concat("beta1 ", exact(o.beta1), "\nbeta2 ", exact(o.beta2), "\nepsilon ",
                          exact(o.epsilon), "\nweight_decay ", exact(o.weight_decay), '\n');
  }
  void visit_state(StateVisitor& visitor) {
    visitor.real("beta1_power", Held::same, beta1_power);
    visitor.real("beta2_power", Held::same, beta2_power);
  }

  double update(Context& ctx, UpdateTable& table, const StepArgs& args) {
    const double beta1 = args.momentum.value_or(options.beta1);
    beta1_power *= beta1;
    beta2_power *= options.beta2;
    optim::update(ctx, table,
                  AdamwPass{.lr = args.lr,
                            .beta1 = beta1,
                            .beta2 = options.beta2,
                            .epsilon = options.epsilon,
                            .weight_decay = options.weight_decay,
                            .correction1 = 1 - beta1_power,
                            .correction2 = 1 - beta2_power});
    return beta1;
  }
};

void check_adamw(bool ok, const char* field, double value, const char* range) {
  DKFAC_CHECK(ok && std::isfinite(value), "[adamw options] ", field, " is ", value, "; it must be ",
              range);
}

}  // namespace

void AdamwOptions::validate() const {
  check_wire("adamw options", "gradient_wire", gradient_wire);
  check_adamw(beta1 >= 0 && beta1 < 1, "beta1", beta1, "in [0, 1)");
  check_adamw(beta2 >= 0 && beta2 < 1, "beta2", beta2, "in [0, 1)");
  check_adamw(epsilon > 0, "epsilon", epsilon, "finite and > 0");
  check_adamw(weight_decay >= 0, "weight_decay", weight_decay, "finite and >= 0");
  check_adamw(bucket_bytes > 0, "bucket_bytes", static_cast<double>(bucket_bytes), "> 0");
}

std::unique_ptr<Optimizer> make_adamw(std::shared_ptr<comm::Communicator> comm,
                                      AdamwOptions options, Device device, ContextOptions context) {
  options.validate();
  return std::make_unique<FirstOrder<Adamw>>(std::move(comm), Adamw{options}, device, context);
}

}  // namespace dkfac::optim
