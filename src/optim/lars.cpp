#include <array>

#include "optim/first_order.h"

namespace dkfac::optim {
namespace {

struct Lars {
  static constexpr std::string_view kName = "lars";
  static constexpr std::array<std::string_view, 1> kStates{"velocity"};
  LarsOptions options;

  [[nodiscard]] std::string description() const {
    const auto& o = options;
    return detail::concat(name_of(kLarsForms, o.form), ", momentum ", o.momentum,
                          o.nesterov ? " (Nesterov)" : "", ", weight decay ", o.weight_decay,
                          ", eta ", o.eta, ", epsilon ", o.epsilon);
  }
  void visit_state(StateVisitor&) {}

  double update(Context& ctx, UpdateTable& table, const StepArgs& args) {
    LarsOptions now = options;
    now.momentum = args.momentum.value_or(options.momentum);
    lars_update(ctx, table, now, args.lr);
    return now.momentum;
  }
};

}  // namespace

void LarsOptions::validate() const {
  check_first_order("lars options", *this);
  DKFAC_CHECK(form != LarsForm::clipped || min_trust <= max_trust, "[lars options] min_trust is ",
              min_trust, " and max_trust is ", max_trust, "; min_trust <= max_trust must hold");
}

std::unique_ptr<Optimizer> make_lars(std::shared_ptr<comm::Communicator> comm, LarsOptions options,
                                     Device device, ContextOptions context) {
  options.validate();
  return std::make_unique<FirstOrder<Lars>>(std::move(comm), Lars{options}, device, context);
}

}  // namespace dkfac::optim
