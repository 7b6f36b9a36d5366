#include "kfac/inverse/factor_form.h"

#include <array>
#include <cmath>
#include <limits>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"

#include "kfac/inverse/backend_robust_inverse.h"
#include "kfac/inverse/factor_plan.h"
#include "kfac/inverse/residual.h"
#include "kfac/inverse/robust_inverse.h"
#include "kfac/schedule/backend_step.h"

namespace dkfac::kfac {
namespace {

/// Factor of the damping in the second stage.
constexpr double kMoreDamping = 10;

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

const FactorForm* FactorForm::at(int index) {
  return std::array{inverse, cholesky, eigen, low_rank, diagonal, blocks}.at(
      static_cast<std::size_t>(index));
}

Shape FactorForm::average_shape(const FactorPlan& plan) const {
  return {ops::packed_size(plan.dim)};
}

std::int64_t FactorForm::inverse_rows(const FactorPlan& plan) const { return plan.dim; }

void FactorForm::write_average(Context& ctx, ConstTensorView average, TensorView m) const {
  ops::unpack_lower(ctx, average, m, ops::Upper::filled);
}

void FactorForm::unpack(Context& ctx, ConstTensorView triangle, TensorView square) const {
  ops::unpack_lower(ctx, triangle, square, ops::Upper::filled);
}

FactorForm::Costs FactorForm::matrices(const FactorPlan& plan, double refresh, double apply) {
  const auto n = static_cast<double>(plan.dim), square = plan.groups * n * n;
  return {refresh * square * n, apply * square, square * n};
}

double FactorForm::build_flops(const FactorPlan& plan, double rows) const {
  const auto n = static_cast<double>(plan.dim);
  return rows * plan.groups * n * (n + 1);
}

void FactorForm::trace(Context& ctx, const FactorPlan& plan, ConstTensorView average,
                       TensorView traces) const {
  kernels::packed_diagonals(ctx, average, plan.dim, traces);
}

void FactorForm::squares(Context& ctx, const FactorPlan& plan, ConstTensorView average,
                         TensorView traces) const {
  kernels::packed_squares(ctx, average, plan.dim, traces);
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

void FactorForm::write_matrix(Context& ctx, ConstTensorView average, TensorView square) const {
  ops::unpack_lower(ctx, average, square, ops::Upper::untouched);
}

void FactorForm::commit(Context& ctx, ConstTensorView from, TensorView to) const {
  ops::copy(ctx, from, to);
}

void FactorForm::refuse(const char* what) const {
  throw InvalidArgument(detail::concat("[factor form] ", name, " has no ", what));
}

}  // namespace dkfac::kfac
