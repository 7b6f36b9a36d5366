#pragma once

#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/layer_spec.h"
#include "dkfac/core/tensor_view.h"

/// Checks of factors and inverses that share nothing with the code which made them: plain loops in
/// f64 over one random vector, so that even the widest factor is checked in seconds.
namespace dkfac::app::bench {

/// Relative error of v'Av for A from compute_a(), against sum over patches of (p'v)^2 / (N P), by
/// the definition of the layer. a[d,d]: lower triangle; f32. input as compute_a() took it.
[[nodiscard]] double error_of_a(Context& ctx, const LayerSpec& spec, ConstTensorView input,
                                std::int64_t global_batch, ConstTensorView a);
/// The same for G = s^2/N sum dy dy'. grad_output: [..., out], the last dimension the channels.
[[nodiscard]] double error_of_g(Context& ctx, ConstTensorView grad_output,
                                std::int64_t global_batch, double s, ConstTensorView g);
/// |(M + shift I) X v - v| / |v| of the packed lower triangle M and its damped inverse X[d,d].
[[nodiscard]] double inverse_residual(ConstTensorView packed, double shift,
                                      ConstTensorView inverse);

}  // namespace dkfac::app::bench
