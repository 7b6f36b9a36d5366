#include "kfac/inverse/robust_inverse.h"

#include <cmath>
#include <limits>

#include "kfac/inverse/backend_robust_inverse.h"
#include "kfac/inverse/residual.h"

namespace dkfac::kfac {
namespace {

/// Factor of the damping in the second stage.
constexpr double kMoreDamping = 10;

double round_to(DType dtype, double x) {
  return dtype == DType::f32 ? static_cast<double>(static_cast<float>(x)) : x;
}

double largest_of(Context& ctx, ConstTensorView x) {
  return number_of<double>(ctx, [&](TensorView out) { ops::max_abs(ctx, x, out); });
}

/// Like FactorForm::factorise(), but in f64, with the result rounded to out.dtype().
bool factorise_wide(Context& ctx, const Solvers& solvers, const FactorForm& form, const Inverted& m,
                    TensorView out) {
  Scratch scratch(ctx);
  const Inverted wide{widen(ctx, scratch, m.average), m.shift};
  const TensorView result = scratch.take(out.shape(), DType::f64);
  if (!form.factorise(ctx, solvers, wide, result)) return false;
  ops::cast(ctx, result, out);
  return inverts(ctx, m, out);
}

/// The eigenvector stage, in f64. The result is not an inverse of M + shift*I where M has negative
/// eigenvalues, so the residual check does not apply; instead the eigendecomposition must reproduce
/// M.
bool clip(Context& ctx, const Solvers& solvers, const FactorForm& form, const Inverted& m,
          TensorView out) {
  Scratch scratch(ctx);
  const std::int64_t n = out.dim(0);
  const TensorView average = widen(ctx, scratch, m.average);
  const TensorView q = scratch.take({n, n}, DType::f64), w = scratch.take({n}, DType::f64);
  const TensorView decomposed = scratch.take({ops::packed_size(n)}, DType::f64);
  form.write_matrix(ctx, average, q);
  ops::pack_lower(ctx, q, decomposed);
  if (!succeeds(ctx, [&](TensorView info) { solvers.eigh(ctx, q, w, info); })) return false;
  if (!decomposes(ctx, decomposed, q, w)) return false;
  // A damping below the rounding of M in f64 would only amplify that rounding.
  const double noise = static_cast<double>(n) * std::numeric_limits<double>::epsilon();
  if (!(m.shift > noise * read_back<double>(ctx, w.slice(0, n - 1, 1))[0])) return false;
  const TensorView scaled = scratch.take({n, n}, DType::f64);
  const TensorView result = scratch.take(out.shape(), DType::f64);
  kernels::scale_vectors(ctx, q, w, m.shift, scaled);
  form.write_clipped(ctx, scaled, average, result);
  ops::cast(ctx, result, out);
  const double largest = largest_of(ctx, out);
  return std::isfinite(largest) && (largest > 0 || form.identity(1) == 0);
}

}  // namespace

bool is_finite(Context& ctx, ConstTensorView x) { return std::isfinite(largest_of(ctx, x)); }

TensorView widen(Context& ctx, Scratch& scratch, ConstTensorView average) {
  const TensorView wide = scratch.take(average.shape(), DType::f64);
  ops::cast(ctx, average, wide);
  return wide;
}

bool FactorForm::factorise_damped(Context& ctx, const Solvers& solvers, const Inverted& m,
                                  TensorView square) const {
  if (!std::isfinite(m.shift)) return false;  // Ten times the requested damping may overflow.
  write_matrix(ctx, m.average, square);
  ops::add_diagonal(ctx, square, m.shift);
  return succeeds(ctx, [&](TensorView info) { solvers.potrf(ctx, square, info); });
}

InverseResult FactorForm::rebuild(Context& ctx, const FactorGroup& block, double shift,
                                  const Solvers& solvers) const {
  const DType dtype = block.inverse.dtype();
  const double requested = round_to(dtype, shift), more = round_to(dtype, kMoreDamping * shift);
  if (!leaves_room(dtype, requested)) return {};
  Scratch scratch(ctx);
  const TensorView out = scratch.take(block.inverse.shape(), dtype);
  const auto done = [&](InverseStage stage, double damping, const FactorForm* form) {
    form->commit(ctx, out, block.inverse);
    return InverseResult{stage, damping, form};
  };
  const Inverted m{block.average, requested};
  if (factorise(ctx, solvers, m, out)) return done(InverseStage::damped, requested, this);
  if (factorise(ctx, solvers, {block.average, more}, out))
    return done(InverseStage::more_damped, more, this);
  if (dtype != DType::f64 && factorise_wide(ctx, solvers, *fallback(), m, out))
    return done(InverseStage::f64, requested, fallback());
  if (clip(ctx, solvers, *fallback(), m, out))
    return done(InverseStage::clipped, requested, fallback());
  return {};
}

bool leaves_room(DType dtype, double shift) {
  const double largest = dtype == DType::f32
                             ? static_cast<double>(std::numeric_limits<float>::max())
                             : std::numeric_limits<double>::max();
  return std::isfinite(shift) && 1 / shift <= largest * kRoom;
}

InverseResult rebuild_inverse(Context& ctx, const FactorGroup& block, double shift,
                              const Solvers& solvers) {
  if (!is_finite(ctx, block.average)) return {};
  return block.form->rebuild(ctx, block, shift, solvers);
}

InverseResult invert_identity(Context& ctx, const FactorGroup& block, double shift) {
  const double damping = round_to(block.inverse.dtype(), shift);
  if (!leaves_room(block.inverse.dtype(), damping)) return {};
  if (round_to(block.inverse.dtype(), 1 / damping) == 0) return {};
  ops::fill(ctx, block.inverse, 0);
  const double element = round_to(block.inverse.dtype(), block.form->identity(1 / damping));
  if (element != 0) ops::add_diagonal(ctx, block.inverse, element);
  return {InverseStage::damped, damping, block.form};
}

}  // namespace dkfac::kfac
