#pragma once

#include "dkfac/core/context.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/kfac/report.h"

#include "kfac/inverse/factor_plan.h"

/// Robust inversion: inverts by a sequence of fallback stages (docs/math.md, "Robust inversion").
namespace dkfac::kfac {

/// The solvers; tests may substitute failing ones.
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

/// Outcome of an inversion. With `kept` the block is unchanged and the other fields are
/// meaningless.
struct InverseResult {
  InverseStage stage = InverseStage::kept;
  double shift = 0;                       ///< The damping in the inverse.
  FactorForm form = FactorForm::inverse;  ///< Form of the inverse, see Factor::stored_form.
};

/// Factor below the largest number of a dtype, as headroom for products of gradients with inverses.
inline constexpr double kRoom = 0x1p-28;
/// Whether 1/shift, the bound of an inverse, stays below the largest number of the dtype by the
/// factor kRoom.
[[nodiscard]] bool leaves_room(DType dtype, double shift);

/// Rebuilds the inverse with the damping `shift` > 0 (eigen: without damping), by the first of
/// these stages whose result passes its check (residual.h):
/// - as requested;
/// - with ten times the damping;
/// - with the requested damping in f64 (skipped if the dtype is f64 already);
/// - from eigenvectors in f64, with negative eigenvalues set to 0, unless the damping is below the
///   rounding of the largest.
///
/// A matrix with a NaN or an Inf is not passed to any solver. A damping for which 1/shift is within
/// 2^28 of the largest number is rejected, since products with gradients would overflow. A result
/// is written only when it is valid. average.dtype() == inverse.dtype(), f32 or f64. On a device,
/// where the form is not cholesky, the host waits for every stage.
[[nodiscard]] InverseResult rebuild_inverse(Context& ctx, const FactorGroup& block, double shift,
                                            const Solvers& solvers = {});
/// Writes the inverse of shift*I, for a layer whose curvature is zero; `kept` when that is zero or
/// too large in the block's dtype.
[[nodiscard]] InverseResult invert_identity(Context& ctx, const FactorGroup& block, double shift);

}  // namespace dkfac::kfac
