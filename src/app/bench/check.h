#pragma once

#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/layer_spec.h"
#include "dkfac/core/tensor_view.h"

/// Checks of factors and inverses that are independent of the code which computed them: plain f64
/// loops with one random vector, so that even the widest factor is checked in seconds.
namespace dkfac::app::bench {

/// Returns the relative error of v'Av for A from compute_a(), against the sum over patches of
/// (p'v)^2 / (N P), by the definition of the layer. a[d,d]: lower triangle; f32. `input`: the input
/// of compute_a().
[[nodiscard]] double error_of_a(Context& ctx, const LayerSpec& spec, ConstTensorView input,
                                std::int64_t global_batch, ConstTensorView a);
/// Returns the relative error of v'Gv for G = s^2/N sum dy dy'. grad_output: [..., out], the last
/// dimension the channels.
[[nodiscard]] double error_of_g(Context& ctx, ConstTensorView grad_output,
                                std::int64_t global_batch, double s, ConstTensorView g);
/// Returns |(M + shift I) X v - v| / |v| for the packed lower triangle M and its damped inverse
/// X[d,d].
[[nodiscard]] double inverse_residual(ConstTensorView packed, double shift,
                                      ConstTensorView inverse);

}  // namespace dkfac::app::bench
