#pragma once

#include "dkfac/core/context.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/tensor_view.h"

#include "core/shared/read_back.h"
#include "kfac/inverse/factor_form.h"

/// Robust inversion: inverts by a sequence of fallback stages (docs/math.md, "Robust inversion").
namespace dkfac::kfac {

/// The solvers; tests may substitute failing ones.
struct Solvers {
  void (*potrf)(Context&, TensorView, TensorView) = ops::potrf;
  void (*potri)(Context&, TensorView, TensorView) = ops::potri;
  void (*eigh)(Context&, TensorView, TensorView, TensorView) = ops::eigh;
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

// Steps that the forms share.

/// What compute(view) writes to a view of one number.
template <class T, class Compute>
T number_of(Context& ctx, Compute&& compute) {
  T out{};
  if (!ctx.device().is_cuda()) {
    compute(view_of(&out, {1}));
    return out;
  }
  Scratch scratch(ctx);
  const TensorView there = scratch.take({1}, dtype_of<T>);
  compute(there);
  return read_back<T>(ctx, there)[0];
}
/// Whether the solver, given a view for its status, reports success.
template <class Solve>
bool succeeds(Context& ctx, Solve&& solve) {
  return number_of<std::int32_t>(ctx, solve) == 0;
}
/// The largest magnitude.
[[nodiscard]] double largest_of(Context& ctx, ConstTensorView x);
[[nodiscard]] bool is_finite(Context& ctx, ConstTensorView x);
/// x in a dtype, f32 or f64.
[[nodiscard]] double round_to(DType dtype, double x);
/// The average in f64.
[[nodiscard]] TensorView widen(Context& ctx, Scratch& scratch, ConstTensorView average);

}  // namespace dkfac::kfac
