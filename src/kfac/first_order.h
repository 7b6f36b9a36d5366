#pragma once

#include <cstdint>

#include "dkfac/core/tensor_view.h"
#include "dkfac/kfac/optimizer.h"

/// Update rules as one pass over a parameter: contiguous host memory, equal shapes, f32 or f64.
namespace dkfac::kfac {

/// One step of momentum SGD. With `correction` the buffer holds gradients, u <- m u + g and
/// w <- w - lr u, which is what rescaling a buffer of lr*gradient amounts to, and holds at lr = 0;
/// without it v <- m v + lr g and w <- w - v. g includes weight_decay * w.
struct SgdPass {
  double lr = 0, momentum = 0, weight_decay = 0;
  bool nesterov = false, correction = true;
};
void sgd_pass(const SgdPass& pass, ConstTensorView gradient, TensorView buffer, TensorView weight);

/// v <- m v - rate (g + wd w); w <- w + v, or with Nesterov w <- w + m v - rate (g + wd w).
struct LarsPass {
  double rate = 0;  ///< Learning rate times trust ratio.
  double momentum = 0, weight_decay = 0;
  bool nesterov = false;
};
void lars_pass(const LarsPass& pass, ConstTensorView gradient, TensorView buffer,
               TensorView weight);
/// eta*|w| / (|g| + wd*|w| + epsilon); 1 when a norm is zero.
[[nodiscard]] double trust_ratio(const LarsOptions& options, double weight_norm,
                                 double gradient_norm);

/// out = updated weight, may be `weight` itself. Momentum rules constant and corrected:
/// v <- m v - lr (u + wd w), out = w + v. Rule paper: out = w - lr (u + wd w) + m v, and v <- w
/// for finish_paper_momentum().
struct KfacPass {
  double lr = 0, momentum = 0, weight_decay = 0;
  MomentumRule rule = MomentumRule::corrected;
};
void kfac_pass(const KfacPass& pass, ConstTensorView direction, ConstTensorView weight,
               TensorView buffer, TensorView out);
/// buffer = out - buffer: from the weight that the pass left there, SP-NGD's v(t) = w(t) - w(t-1).
void finish_paper_momentum(ConstTensorView out, TensorView buffer);
/// weight *= sqrt(2 d_out) / (|weight| + 1e-9), by the rule; SP-NGD eq. 24.
void rescale(Rescale rule, std::int64_t d_out, TensorView weight);

/// Accumulated in f64; 0 for an empty view.
[[nodiscard]] double l2_norm(ConstTensorView x);

}  // namespace dkfac::kfac
