#pragma once

#include <cstdint>
#include <optional>

#include "dkfac/core/context.h"
#include "dkfac/core/export.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/kfac/options.h"

/// Averages, damping, inverses and their application: free functions over views.
namespace dkfac::kfac {

/// Weight of the t-th statistic (t from 1) that makes the running average exact from its first
/// value on: w / (1 - (1-w)^t). average <- (1 - weight)*average + weight*statistic. docs/math.md,
/// "Average".
[[nodiscard]] DKFAC_API double average_weight(double new_weight, std::int64_t t);

/// Diagonal shifts of the two factors.
struct DKFAC_API DampingShifts {
  double a = 0, g = 0;
};
/// a = pi*sqrt(lambda), g = sqrt(lambda)/pi with the pi of docs/math.md, "Damping". Nothing where a
/// trace is zero (or negative): A (x) G is zero with that factor, and U = dW/lambda, which no
/// shifts of the two give; see invert_factors().
[[nodiscard]] DKFAC_API std::optional<DampingShifts> split_damping(
    const Damping& damping, double trace_a, std::int64_t dim_a, double trace_g, std::int64_t dim_g);

/// The damped inverses of a layer, for precondition(): a_inverse[d,d] and g_inverse[out,out], as
/// invert_factor() makes them of the packed lower triangles A and G with the shifts of
/// split_damping(); both I/sqrt(lambda) where a factor is zero, hence U = dW/lambda.
/// The statuses of A and G to info[2] (i32). On a device the host waits for the traces.
DKFAC_API void invert_factors(Context& ctx, ConstTensorView a, ConstTensorView g,
                              const Damping& damping, TensorView a_inverse, TensorView g_inverse,
                              TensorView info);

/// inverse[d,d] (full, symmetric) = (M + shift*I)^-1 of the packed lower triangle M, shift >= 0.
/// Status to info[1] (i32): 0, or the order of the first leading minor that is not positive
/// definite or holds a NaN or an Inf (then no solver was called), or d when the inverse overflows.
/// `inverse` is unspecified when it is not 0.
DKFAC_API void invert_factor(Context& ctx, ConstTensorView packed, double shift, TensorView inverse,
                             TensorView info);

/// [dW | db] <- G^-1 [dW | db] A^-1 in place; weight_grad is [out, ...] or a vector of the same
/// order, seen as [out, width]; bias_grad is [out] or empty; both contiguous. a_inverse[d,d] with d
/// = width, or width + 1 with a bias.
DKFAC_API void precondition(Context& ctx, ConstTensorView a_inverse, ConstTensorView g_inverse,
                            TensorView weight_grad, TensorView bias_grad);

/// Factor of the KL clip (Ba et al. 2017; docs/math.md, "KL clip"):
/// min(1, sqrt(kappa / (lr^2 product))), with product = <U, V> summed over all preconditioned
/// gradients U and their gradients V. 1 where lr^2 product <= 0, as nothing moves or the direction
/// has no length in this metric, and with kappa = 0, which is no clip; 0 where it is not finite:
/// such a direction must not be applied. Throws InvalidArgument for another kappa that is not > 0.
[[nodiscard]] DKFAC_API double kl_clip_factor(double kappa, double lr, double product);

/// vectors[d,d] (in columns) and values[d] (ascending, negative ones clipped to 0) of the packed
/// lower triangle M. info[1] (i32): 0, or > 0 when the iteration failed or M is not finite.
DKFAC_API void decompose_factor(Context& ctx, ConstTensorView packed, TensorView vectors,
                                TensorView values, TensorView info);

/// Solves (A (x) G + lambda I) u = [dW | db] exactly in the factors' eigenbases:
/// U = Q_g ((Q_g' V Q_a) / (w_g w_a' + lambda)) Q_a'. In place, shapes as precondition(). scales
/// [out,d], if given, takes the place of w_g w_a' (EKFAC: George et al. 2018).
DKFAC_API void precondition_eigen(Context& ctx, ConstTensorView a_vectors, ConstTensorView a_values,
                                  ConstTensorView g_vectors, ConstTensorView g_values,
                                  double lambda, TensorView weight_grad, TensorView bias_grad,
                                  ConstTensorView scales = {});

/// (g_gamma, g_beta) <- (F_c + shift*I)^-1 (g_gamma, g_beta) per channel, in place, by the closed
/// 2x2 formula (unit_wise) or elementwise (diagonal). fisher as compute_norm_fisher. A
/// gamma_grad without elements stands for a fixed gamma: fisher[1,c], elementwise in both modes.
/// BatchNormFisher::full is refused: that is one matrix, for invert_factor().
DKFAC_API void precondition_batch_norm(Context& ctx, BatchNormFisher mode, ConstTensorView fisher,
                                       double shift, TensorView gamma_grad, TensorView beta_grad);

}  // namespace dkfac::kfac
