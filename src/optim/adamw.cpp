#include "optim/adamw_moments.h"
#include "optim/first_order.h"

namespace dkfac::optim {
namespace {

struct Adamw {
  static constexpr std::string_view kName = "adamw";
  static constexpr auto kStates = AdamwMoments::kStates;
  AdamwOptions options;
  AdamwMoments moments = {};

  [[nodiscard]] std::string description() const {
    const auto& o = options;
    return detail::concat("betas ", o.beta1, " and ", o.beta2, ", epsilon ", o.epsilon,
                          ", decoupled weight decay ", o.weight_decay);
  }
  void visit_state(StateVisitor& visitor) { moments.visit_state(visitor); }

  double update(Context& ctx, UpdateTable& table, const StepArgs& args) {
    const double beta1 = args.momentum.value_or(options.beta1);
    optim::update(ctx, table, moments.next(options, args.lr, beta1));
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
