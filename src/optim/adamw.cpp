#include <array>
#include <cmath>

#include "optim/first_order.h"

namespace dkfac::optim {
namespace {

struct Adamw {
  static constexpr std::string_view kName = "adamw";
  static constexpr std::array<std::string_view, 2> kSlots{"first_moment", "second_moment"};
  AdamwOptions options;
  /// Products of the betas over all updates: beta^t where they are constant.
  double beta1_power = 1, beta2_power = 1;

  [[nodiscard]] std::string description() const {
    const auto& o = options;
    return detail::concat("betas ", o.beta1, " and ", o.beta2, ", epsilon ", o.epsilon,
                          ", decoupled weight decay ", o.weight_decay);
  }
  void visit_state(StateVisitor& visitor) {
    visitor.real("beta1_power", StateKind::replicated, beta1_power);
    visitor.real("beta2_power", StateKind::replicated, beta2_power);
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

}  // namespace

void AdamwOptions::validate() const { check_first_order("adamw options", *this); }

std::unique_ptr<Optimizer> make_adamw(std::shared_ptr<comm::Communicator> comm,
                                      AdamwOptions options, Device device, ContextOptions context) {
  options.validate();
  return std::make_unique<FirstOrder<Adamw>>(std::move(comm), Adamw{options}, device, context);
}

}  // namespace dkfac::optim
