#pragma once

#include "core/shared/cuda/device_code.h"
#include "optim/element_state.h"

namespace dkfac::optim {

template <class T>
struct SgdRule;

/// Parameters of one step of momentum SGD; g includes weight_decay * w.
/// - With `correction` the buffer holds gradients: u <- m u + g, w <- w - lr u. This is equivalent
///   to rescaling a buffer of lr*gradient, and is defined for lr = 0.
/// - Without: v <- m v + lr g, w <- w - v.
struct SgdPass {
  double lr = 0, momentum = 0, weight_decay = 0;
  bool nesterov = false, correction = true;

  template <class T>
  using Rule = SgdRule<T>;
};

template <class T>
struct SgdRule {
  T momentum, decay, in, rate;
  bool nesterov;
  DKFAC_HD explicit SgdRule(const SgdPass& pass)
      : momentum(static_cast<T>(pass.momentum)),
        decay(static_cast<T>(pass.weight_decay)),
        in(pass.correction ? T{1} : static_cast<T>(pass.lr)),
        rate(pass.correction ? static_cast<T>(pass.lr) : T{1}),
        nesterov(pass.nesterov) {}
  DKFAC_HD void operator()(T g, ElementState<T> state, T& w) const {
    T& v = state[0];
    const T step = in * (g + decay * w);
    const T moved = momentum * v + step;
    v = moved;
    w -= rate * (nesterov ? step + momentum * moved : moved);
  }
};

}  // namespace dkfac::optim
