#pragma once

#include "dkfac/core/context.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/kfac/report.h"

#include "kfac/inverse/factor_plan.h"

/// Making an inverse whatever the matrix is like (docs/math.md, "Ladder").
namespace dkfac::kfac {

/// The solvers used; a test may put failing ones in their place.
struct Solvers {
  void (*potrf)(Context&, TensorView, TensorView) = ops::potrf;
  void (*potri)(Context&, TensorView, TensorView) = ops::potri;
  void (*eigh)(Context&, TensorView, TensorView, TensorView) = ops::eigh;
};

/// One group of a factor.
struct FactorGroup {
  FactorForm form = FactorForm::inverse;
  ConstTensorView average;  ///< [packed_size(d)]; low_rank: rows [rows,d].
  TensorView inverse;       ///< [d,d]; low_rank: [rows,d].
  TensorView values;        ///< [d], eigen only.
};

/// How it went. `kept`: the block is untouched, the rest says nothing.
struct InverseResult {
  InverseStage stage = InverseStage::kept;
  double shift = 0;                       ///< The damping in the inverse.
  FactorForm form = FactorForm::inverse;  ///< What the inverse is, see Factor::stored_form.
};

/// What products of gradients with inverses may grow by below the largest number of a dtype.
inline constexpr double kRoom = 0x1p-28;
/// Whether products with inverses of up to 1/shift stay below the largest number, by kRoom.
[[nodiscard]] bool leaves_room(DType dtype, double shift);

/// Rebuilds the inverse with the damping `shift` > 0 (eigen: without), by the first of these that
/// gives a result which passes its check (residual.h): as asked; with ten times the damping; with
/// the damping asked for in f64 (in f64 already: no stage of its own); from eigenvectors in f64,
/// with eigenvalues below 0 taken as 0, unless the damping is below the rounding of the largest. A
/// matrix with a NaN or an Inf is shown to no solver, and a damping for which 1/shift is within
/// 2^28 of the largest number is refused, since products with gradients would overflow. A result is
/// written only when it is good. average.dtype() == inverse.dtype(), f32 or f64. On a device, where
/// the form is not cholesky, the host waits for every stage.
[[nodiscard]] InverseResult rebuild_inverse(Context& ctx, const FactorGroup& block, double shift,
                                            const Solvers& solvers = {});
/// Writes the inverse of shift*I, for a layer whose curvature is zero; `kept` when that is zero or
/// too large in the block's dtype.
[[nodiscard]] InverseResult invert_identity(Context& ctx, const FactorGroup& block, double shift);

}  // namespace dkfac::kfac
