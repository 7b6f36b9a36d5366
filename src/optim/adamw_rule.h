#pragma once

#include <cmath>

#include "core/shared/cuda/device_code.h"
#include "optim/element_state.h"

namespace dkfac::optim {

template <class T>
struct AdamwRule;

/// Parameters of one step of AdamW. The corrections are 1 - beta1^t and 1 - beta2^t for the t-th
/// update, from 1.
struct AdamwPass {
  double lr = 0, beta1 = 0, beta2 = 0, epsilon = 0, weight_decay = 0;
  double correction1 = 1, correction2 = 1;

  template <class T>
  using Rule = AdamwRule<T>;
};

/// States: first and second moment.
template <class T>
struct AdamwRule {
  T beta1, beta2, new1, new2, epsilon, kept, rate, root;
  DKFAC_HD explicit AdamwRule(const AdamwPass& pass)
      : beta1(static_cast<T>(pass.beta1)),
        beta2(static_cast<T>(pass.beta2)),
        new1(static_cast<T>(1 - pass.beta1)),
        new2(static_cast<T>(1 - pass.beta2)),
        epsilon(static_cast<T>(pass.epsilon)),
        kept(static_cast<T>(1 - pass.lr * pass.weight_decay)),
        rate(static_cast<T>(pass.lr / pass.correction1)),
        root(static_cast<T>(std::sqrt(pass.correction2))) {}
  DKFAC_HD void operator()(T g, ElementState<T> state, T& w) const {
    const T first = beta1 * state[0] + new1 * g;
    const T second = beta2 * state[1] + new2 * g * g;
    state[0] = first;
    state[1] = second;
    w = kept * w - rate * first / (std::sqrt(second) / root + epsilon);
  }
};

}  // namespace dkfac::optim
