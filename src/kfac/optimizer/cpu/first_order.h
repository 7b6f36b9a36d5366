#pragma once

#include <cstdint>

#include "dkfac/core/tensor_view.h"

#include "kfac/optimizer/update_rules.h"

/// Update rules as one pass over a parameter: contiguous host memory, equal shapes, f32 or f64.
namespace dkfac::kfac::cpu {

void sgd_pass(const SgdPass& pass, ConstTensorView gradient, TensorView buffer, TensorView weight);
void lars_pass(const LarsPass& pass, ConstTensorView gradient, TensorView buffer,
               TensorView weight);
void kfac_pass(const KfacPass& pass, ConstTensorView direction, ConstTensorView weight,
               TensorView buffer, TensorView out);
/// buffer = out - buffer, after a pass of the paper's rule.
void finish_paper_momentum(ConstTensorView out, TensorView buffer);
/// weight *= rescale_factor(rule, d_out, |weight|).
void rescale(Rescale rule, std::int64_t d_out, TensorView weight);
/// u *= factor, in place; 0 also where u is not finite.
void scale_direction(double factor, TensorView u);

/// Accumulated in f64; 0 for an empty view.
[[nodiscard]] double l2_norm(ConstTensorView x);

}  // namespace dkfac::kfac::cpu
