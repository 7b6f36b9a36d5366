#pragma once

#include <array>
#include <string_view>

#include "dkfac/core/state.h"

#include "optim/adamw_rule.h"

namespace dkfac::optim {

/// What AdamW keeps: two moments of each element, and the products of the betas over all updates,
/// which are beta^t where they are constant.
struct AdamwMoments {
  static constexpr std::array<std::string_view, 2> kStates{"first_moment", "second_moment"};
  double beta1_power = 1, beta2_power = 1;

  /// Counts an update and returns its pass. options: with beta2, epsilon and weight_decay.
  template <class Options>
  [[nodiscard]] AdamwPass next(const Options& options, double lr, double beta1) {
    beta1_power *= beta1;
    beta2_power *= options.beta2;
    return {.lr = lr,
            .beta1 = beta1,
            .beta2 = options.beta2,
            .epsilon = options.epsilon,
            .weight_decay = options.weight_decay,
            .correction1 = 1 - beta1_power,
            .correction2 = 1 - beta2_power};
  }
  void visit_state(StateVisitor& visitor) {
    visitor.real("beta1_power", StateKind::replicated, beta1_power);
    visitor.real("beta2_power", StateKind::replicated, beta2_power);
  }
};

}  // namespace dkfac::optim
