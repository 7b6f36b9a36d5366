#pragma once

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"

#include "kfac/inverse/factor_plan.h"

/// Whether a solver's result is one: a status of 0 does not say so.
namespace dkfac::kfac {

/// Errors above this share are not accepted.
inline constexpr double kResidualBar = 0.1;

/// A solver gives the eigenvectors and eigenvalues of M + E with |E| up to a few sqrt(d) eps |M|,
/// where |M| <= tr M. |E z| is as much times |z| = sqrt(d): of 10^6 decompositions the largest was
/// 8 d eps tr M.
inline constexpr double kEigenRounding = 32;

/// A symmetric matrix M of which an inverse has been made.
struct Inverted {
  ConstTensorView average;  ///< [packed_size(d)]; low_rank: rows X[rows,d], M = X'X.
  double shift = 0;
};

/// Whether X, in `form` (not eigen), inverts M + shift*I: for two fixed vectors z of +1 and -1,
///   |X r| <= bar |X z|  and  |r| <= bar |z| + d eps (tr M + shift) |X z|
/// for the residual r = z - (M + shift I) X z, bar = kResidualBar and the eps of the dtype. X r is
/// one step of refinement: it shows an error in a single direction of small curvature, which is the
/// largest part of X and a small one of r. The last term admits an inverse that is right to
/// rounding although the condition of M makes that rounding show in r. Sums in f64; about 6 d^2
/// operations per vector.
/// x: inverse: lower triangle of [d,d]; cholesky: blocked L[d,d]; low_rank: Y[rows,d]. Never true
/// for a result with a NaN, or one that is zero.
[[nodiscard]] bool inverts(Context& ctx, FactorForm form, const Inverted& m, ConstTensorView x);

/// Whether M z = Q diag(w) Q' z to kResidualBar |M z| + kEigenRounding d eps tr M, likewise, and
/// every element of Q'Q z is that of z to kResidualBar: one column that is too long, or not at
/// right angles to the others, shows in its own element, and in the null space of M nowhere else.
/// The second term is for a z that is in or near that null space, where M z is nothing but
/// rounding.
[[nodiscard]] bool decomposes(Context& ctx, ConstTensorView average, ConstTensorView vectors,
                              ConstTensorView values);

}  // namespace dkfac::kfac
