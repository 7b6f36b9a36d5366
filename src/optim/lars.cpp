#include <array>
#include <cmath>

#include "optim/first_order.h"

namespace dkfac::optim {
namespace {

struct Lars {
  static constexpr std::string_view kName = "lars";
  static constexpr std::array<std::string_view, 1> kSlots{"velocity"};
  LarsOptions options;

  [[nodiscard]] std::string description() const {
    const auto& o = options;
    return detail::concat("momentum ", o.momentum, o.nesterov ? " (Nesterov)" : "",
                          ", weight decay ", o.weight_decay, ", eta ", o.eta, ", epsilon ",
                          o.epsilon);
  }
  [[nodiscard]] std::string options_text() const {
    return detail::concat("momentum ", exact(options.momentum), "\nnesterov ", options.nesterov,
                          "\nweight_decay ", exact(options.weight_decay), "\neta ",
                          exact(options.eta), "\nepsilon ", exact(options.epsilon), '\n');
  }
  void visit_state(StateVisitor&) {}

  double update(Context& ctx, UpdateTable& table, const StepArgs& args) {
    LarsOptions now = options;
    now.momentum = args.momentum.value_or(options.momentum);
    lars_update(ctx, table, now, args.lr);
    return now.momentum;
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
  return std::make_unique<FirstOrder<Lars>>(std::move(comm), Lars{options}, device, context);
}

}  // namespace dkfac::optim
