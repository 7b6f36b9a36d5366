#pragma once

#include <variant>

#include "dkfac/optim/optimizer.h"

#include "core/shared/cuda/device_code.h"
#include "optim/adamw_rule.h"
#include "optim/element_state.h"

namespace dkfac::optim {

template <class T>
struct KfacRule;

/// One step of DirectionUpdate::momentum. Momentum rules constant and corrected: v <- m v - lr (u +
/// wd w), w <- w + v. Rule paper: w <- w - lr (u + wd w) + m v, and v <- the previous w, for
/// paper_momentum().
struct KfacPass {
  double lr = 0, momentum = 0, weight_decay = 0;
  MomentumRule rule = MomentumRule::corrected;

  template <class T>
  using Rule = KfacRule<T>;
};

template <class T>
struct KfacRule {
  T momentum, decay, lr;
  bool keep;  ///< The buffer holds the step, not the previous weight.
  DKFAC_HD explicit KfacRule(const KfacPass& pass)
      : momentum(static_cast<T>(pass.momentum)),
        decay(static_cast<T>(pass.weight_decay)),
        lr(static_cast<T>(pass.lr)),
        keep(pass.rule != MomentumRule::paper) {}
  DKFAC_HD void operator()(T u, ElementState<T> state, T& w) const {
    const T before = w;
    const T step = momentum * state[0] - lr * (u + decay * before);
    state[0] = keep ? step : before;
    w = before + step;
  }
};

/// What updates a weight with its direction: elementwise passes (elementwise_passes.h).
using DirectionPass = std::variant<KfacPass, AdamwPass>;

/// Whether the buffer of a part holds its previous weight after the pass.
[[nodiscard]] inline bool keeps_weight(const DirectionPass& pass) {
  const auto* momentum = std::get_if<KfacPass>(&pass);
  return momentum != nullptr && momentum->rule == MomentumRule::paper;
}

/// SP-NGD's v(t) = w(t) - w(t-1), from the previous weight that the pass stored in the buffer.
template <class T>
DKFAC_HD T paper_momentum(T out, T buffer) {
  return out - buffer;
}

}  // namespace dkfac::optim
