#pragma once

#include <cstdint>

#include "dkfac/core/tensor_view.h"

#include "optim/elementwise_passes.h"
#include "optim/kfac_rule.h"
#include "optim/update_rules.h"

/// Update rules as one pass over a parameter: contiguous host memory, equal shapes, f32 or f64.
namespace dkfac::optim::cpu {

/// states: [states, elements], rows may have any stride.
#define DKFAC_DECLARE(kernel, Pass)                                                    \
  void elementwise_pass(const Pass& pass, ConstTensorView gradient, TensorView states, \
                        TensorView weight);
DKFAC_ELEMENTWISE_PASSES(DKFAC_DECLARE)
#undef DKFAC_DECLARE
void lars_pass(const LarsPass& pass, ConstTensorView gradient, TensorView buffer,
               TensorView weight);
/// clip: the factor of the KL clip, by which `direction` is multiplied. out: the updated weight; it
/// may be `weight`.
void direction_pass(const DirectionPass& pass, double clip, ConstTensorView direction,
                    ConstTensorView weight, TensorView states, TensorView out);
/// buffer = out - buffer, after a pass of the paper's rule.
void finish_paper_momentum(ConstTensorView out, TensorView buffer);
/// weight *= rescale_factor(rule, d_out, |weight|).
void rescale(Rescale rule, std::int64_t d_out, TensorView weight);

/// L2 norm, accumulated in f64; 0 for an empty view.
[[nodiscard]] double l2_norm(ConstTensorView x);
/// L2 norm of trust_gradient() over a parameter.
[[nodiscard]] double trust_norm(LarsForm form, double decay, ConstTensorView gradient,
                                ConstTensorView weight);

}  // namespace dkfac::optim::cpu
