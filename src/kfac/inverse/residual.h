#pragma once

#include "dkfac/core/tensor_view.h"

#include "core/shared/kernel.h"

/// Checks of a solver's result, which may be wrong although its status is 0.
namespace dkfac::kfac {

/// Relative errors above this bound are rejected.
inline constexpr double kResidualBar = 0.1;

/// Bound of the rounding errors of eigenvalue solvers. They return the eigenvectors and eigenvalues
/// of M + E with |E| up to a few sqrt(d) eps |M|, where |M| <= tr M. |E z| is |z| = sqrt(d) times
/// as much: of 10^6 decompositions the largest was 8 d eps tr M.
inline constexpr double kEigenRounding = 32;

/// A symmetric matrix M that has been inverted.
struct Inverted {
  ConstTensorView average;  ///< [packed_size(d)], or rows X[rows,d] with M = X'X.
  double shift = 0;
  bool factored = false;  ///< The result is the blocked Cholesky factor; only on the host.
};

/// Whether X is an inverse of M + shift*I. For two fixed vectors z of +1
/// and -1 and the residual r = z - (M + shift I) X z it checks
///   |X r| <= bar |X z|  and  |r| <= bar |z| + d eps (tr M + shift) |X z|
/// with bar = kResidualBar and the eps of the dtype.
///
/// X r is one step of refinement. It shows an error in a single direction of small curvature, which
/// is the largest part of X and a small part of r. The last term accepts an inverse that is correct
/// to rounding where the condition of M makes that rounding visible in r. Sums are in f64; about 6
/// d^2 operations per vector.
///
/// x: lower triangle of [d,d]; factored: blocked L[d,d]; of rows: Y[rows,d]. Never true for a
/// result that contains a NaN or is zero. Synchronizes with a device, as decomposes().
DKFAC_KERNEL(bool, inverts, const Inverted& m, ConstTensorView x);

/// Whether vectors Q and values w are an eigendecomposition of M. For the z of inverts() it checks
///   |M z - Q diag(w) Q' z| <= kResidualBar |M z| + kEigenRounding d eps tr M,
/// and that every element of Q'Q z equals that of z to kResidualBar.
///
/// The check of Q'Q z finds a column that is too long, or not orthogonal to the others: it shows in
/// its own element, and for the null space of M nowhere else. The second term is for a z in or near
/// that null space, where M z is rounding only.
DKFAC_KERNEL(bool, decomposes, ConstTensorView average, ConstTensorView vectors,
             ConstTensorView values);
using kernels::decomposes, kernels::inverts;

}  // namespace dkfac::kfac
