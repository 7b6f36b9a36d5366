#include <array>
#include <utility>

#include "optim/first_order.h"

namespace dkfac::optim {
namespace {

struct Sgd {
  static constexpr std::string_view kName = "sgd";
  static constexpr std::array<std::string_view, 1> kStates{"velocity"};
  SgdOptions options;
  double last_lr = 0;

  [[nodiscard]] std::string description() const {
    const auto& o = options;
    return detail::concat("momentum ", o.momentum, o.nesterov ? " (Nesterov)" : "",
                          ", weight decay ", o.weight_decay,
                          o.momentum_correction ? ", momentum correction" : "");
  }
  void visit_state(StateVisitor& visitor) {
    visitor.real("last_lr", StateKind::replicated, last_lr);
  }

  double update(Context& ctx, UpdateTable& table, const StepArgs& args) {
    const double momentum = args.momentum.value_or(options.momentum);
    optim::update(ctx, table,
                  SgdPass{.lr = args.lr,
                          .momentum = momentum,
                          .weight_decay = options.weight_decay,
                          .nesterov = options.nesterov,
                          .correction = options.momentum_correction});
    const double last = std::exchange(last_lr, args.lr);
    const bool rescaled = options.momentum_correction && last > 0;
    return momentum * (rescaled ? args.lr / last : 1);
  }
};

}  // namespace

void SgdOptions::validate() const { check_first_order("sgd options", *this); }

std::unique_ptr<Optimizer> make_sgd(std::shared_ptr<comm::Communicator> comm, SgdOptions options,
                                    Device device, ContextOptions context) {
  options.validate();
  return std::make_unique<FirstOrder<Sgd>>(std::move(comm), Sgd{options}, device, context);
}

}  // namespace dkfac::optim
