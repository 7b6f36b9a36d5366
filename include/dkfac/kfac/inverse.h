#pragma once

#include <cstdint>
#include <optional>

#include "dkfac/core/context.h"
#include "dkfac/core/export.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/kfac/options.h"

/// Free functions over views: averaging, damping, inversion and preconditioning.
namespace dkfac::kfac {

/// Returns the weight of the t-th statistic (t from 1) in the running average,
///   average <- (1 - weight)*average + weight*statistic,
/// which corrects its bias from the first value on: w / (1 - (1-w)^t) with w = new_weight.
/// docs/math.md, "Average".
[[nodiscard]] DKFAC_API double average_weight(double new_weight, std::int64_t t);

/// Returns lambda of a layer: options.damping, or where that is 0
///   relative_damping * (tr A/dim A) * (tr G^2/tr G),
/// and 1 where that is below 1e-20, as with a zero factor (docs/math.md, "Damping"). square_g:
/// tr G^2, the sum of the squares of G's elements.
[[nodiscard]] DKFAC_API double layer_damping(const CurvatureOptions& options, double trace_a,
                                             std::int64_t dim_a, double trace_g, double square_g);

/// Diagonal shifts of the two factors.
struct DKFAC_API DampingShifts {
  double a = 0, g = 0;
};
/// Splits lambda between A and G with the pi of docs/math.md, "Damping":
///   a = pi*sqrt(lambda), g = sqrt(lambda)/pi.
/// Returns nullopt where a trace is zero (or negative): G (x) A is then zero and U = dW/lambda,
/// which no pair of shifts gives; see invert_factors().
[[nodiscard]] DKFAC_API std::optional<DampingShifts> split_damping(
    const Damping& damping, double trace_a, std::int64_t dim_a, double trace_g, std::int64_t dim_g);

/// Computes the damped inverses of a layer for precondition(): a_inverse[d,d] and
/// g_inverse[out,out], as invert_factor() computes them of the packed lower triangles a[d(d+1)/2]
/// and g[out(out+1)/2] (ops::pack_lower() of compute_a() and compute_g()) with the shifts of
/// split_damping(). Where a factor is zero, both are I/sqrt(lambda), so that U =
/// dW/lambda. Writes the statuses of A and G to info[2] (i32). On a device the host waits for the
/// traces.
DKFAC_API void invert_factors(Context& ctx, ConstTensorView a, ConstTensorView g,
                              const Damping& damping, TensorView a_inverse, TensorView g_inverse,
                              TensorView info);

/// Computes inverse[d,d] = (M + shift*I)^-1, full and symmetric, of the packed lower triangle M,
/// with shift >= 0. Writes the status to info[1] (i32):
/// - 0: success;
/// - the order of the first leading minor that is not positive definite or holds a NaN or an Inf
///   (in the latter case no solver was called);
/// - d: the inverse overflows.
///
/// `inverse` is unspecified when the status is not 0.
DKFAC_API void invert_factor(Context& ctx, ConstTensorView packed, double shift, TensorView inverse,
                             TensorView info);

/// Preconditions a gradient in place: [dW | db] <- G^-1 [dW | db] A^-1. weight_grad is [out, ...]
/// or a vector in the same order, viewed as [out, width]. bias_grad is [out] or empty. Both are
/// contiguous. a_inverse is [d,d] with d = width, or width + 1 with a bias.
DKFAC_API void precondition(Context& ctx, ConstTensorView a_inverse, ConstTensorView g_inverse,
                            TensorView weight_grad, TensorView bias_grad);

/// Returns the factor of the KL clip (Ba et al. 2017; docs/math.md, "KL clip"),
///   min(1, sqrt(kappa / (lr^2 product))),
/// with product = <U, V> summed over all preconditioned gradients U and their gradients V; where
/// rates differ, each term times the square of its rate's multiple of lr. It is 1 with kappa = 0
/// (no clip) and where lr^2 product <= 0: then nothing is updated, or the direction has no length
/// in this metric. It is 0 where lr^2 product is not finite: such a direction must not be applied.
/// Throws InvalidArgument for any other kappa that is not > 0.
[[nodiscard]] DKFAC_API double kl_clip_factor(double kappa, double lr, double product);

/// Computes vectors[d,d] (in columns) and values[d] (ascending, negative ones set to 0) of the
/// packed lower triangle M. Writes to info[1] (i32): 0, or > 0 when the iteration failed or M is
/// not finite.
DKFAC_API void decompose_factor(Context& ctx, ConstTensorView packed, TensorView vectors,
                                TensorView values, TensorView info);

/// Solves (G (x) A + lambda I) u = [dW | db] exactly in the factors' eigenbases: U = Q_g ((Q_g' V
/// Q_a) / (w_g w_a' + lambda)) Q_a'. In place, with the shapes of precondition(). scales[out,d], if
/// given, replaces w_g w_a' (EKFAC: George et al. 2018).
DKFAC_API void precondition_eigen(Context& ctx, ConstTensorView a_vectors, ConstTensorView a_values,
                                  ConstTensorView g_vectors, ConstTensorView g_values,
                                  double lambda, TensorView weight_grad, TensorView bias_grad,
                                  ConstTensorView scales = {});

/// Preconditions a normalisation per channel, in place: (g_gamma, g_beta) <- (F_c + shift*I)^-1
/// (g_gamma, g_beta), by the closed 2x2 formula (unit_wise) or elementwise (diagonal). fisher is as
/// of compute_norm_fisher(). An empty gamma_grad means a fixed gamma: fisher[1,c], elementwise in
/// both modes. NormFisher::full is an error: that is one matrix, for invert_factor().
DKFAC_API void precondition_norm(Context& ctx, NormFisher mode, ConstTensorView fisher,
                                 double shift, TensorView gamma_grad, TensorView beta_grad);

}  // namespace dkfac::kfac
