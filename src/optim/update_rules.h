#pragma once

#include <cmath>
#include <cstdint>

#include "dkfac/optim/optimizer.h"

#include "core/shared/cuda/device_code.h"

/// The arithmetic of the rules that are not elementwise, shared by host and devices.
namespace dkfac::optim {

/// One step of LARS: v <- m v - rate (g + wd w); w <- w + outer v, or with Nesterov w <- w + outer
/// (m v - rate (g + wd w)).
struct LarsPass {
  double rate = 0;   ///< Trust ratio, times the learning rate unless that is `outer`.
  double outer = 1;  ///< LarsForm::larc: the learning rate.
  double momentum = 0, weight_decay = 0;
  bool nesterov = false;
};

/// The update of one element in the type T of the parameters; v and w are written.
template <class T>
struct LarsRule {
  T momentum, decay, rate, outer;
  bool nesterov;
  DKFAC_HD explicit LarsRule(const LarsPass& pass)
      : momentum(static_cast<T>(pass.momentum)),
        decay(static_cast<T>(pass.weight_decay)),
        rate(static_cast<T>(pass.rate)),
        outer(static_cast<T>(pass.outer)),
        nesterov(pass.nesterov) {}
  DKFAC_HD void operator()(T g, T& v, T& w) const {
    const T step = rate * (g + decay * w);
    const T moved = momentum * v - step;
    v = moved;
    w += outer * (nesterov ? momentum * moved - step : moved);
  }
};

/// lars_trust_ratio() without checks.
[[nodiscard]] DKFAC_HD inline double trust_ratio(const LarsOptions& options, double weight_norm,
                                                 double gradient_norm, double lr) {
  if (!(weight_norm > 0 && gradient_norm > 0)) return 1;
  const double decay = options.form == LarsForm::joint_norm ? 0 : options.weight_decay;
  const double trust =
      options.eta * weight_norm / (gradient_norm + decay * weight_norm + options.epsilon);
  if (options.form == LarsForm::larc) return trust < lr ? trust / lr : 1;
  if (options.form != LarsForm::clipped) return trust;
  const double above = trust < options.min_trust ? options.min_trust : trust;
  return above > options.max_trust ? options.max_trust : above;
}

/// Sets rate and outer of a pass at the learning rate `lr` of a part.
DKFAC_HD inline void set_rate(LarsPass& pass, LarsForm form, double lr, double trust) {
  pass.rate = form == LarsForm::larc ? trust : lr * trust;
  pass.outer = form == LarsForm::larc ? lr : 1;
}

/// A gradient as it counts for the trust ratio; decay: that of its weight.
[[nodiscard]] DKFAC_HD inline double trust_gradient(LarsForm form, double decay, double g,
                                                    double w) {
  return form == LarsForm::joint_norm ? g + decay * w : g;
}

/// sqrt(2 d_out) / (norm + 1e-9), or 1 where the rule leaves the weight unchanged; SP-NGD eq. 24.
[[nodiscard]] DKFAC_HD inline double rescale_factor(Rescale rule, std::int64_t d_out, double norm) {
  if (rule == Rescale::off) return 1;
  const double factor = std::sqrt(2 * static_cast<double>(d_out)) / (norm + 1e-9);
  return rule == Rescale::shrink && factor >= 1 ? 1 : factor;
}

}  // namespace dkfac::optim
