#include "kfac/inverse/robust_inverse.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/shared/exact_products.h"
#include "core/shared/read_back.h"
#include "kfac/inverse/backend_robust_inverse.h"
#include "kfac/inverse/block_triangular.h"
#include "kfac/inverse/residual.h"

namespace dkfac::kfac {
namespace {

using ops::Trans;
using ops::Upper;

/// Factor of the damping in the second stage.
constexpr double kMoreDamping = 10;

double round_to(DType dtype, double x) {
  return dtype == DType::f32 ? static_cast<double>(static_cast<float>(x)) : x;
}

double number_of(Context& ctx, void (*reduce)(Context&, ConstTensorView, TensorView),
                 ConstTensorView x) {
  double out = 0;
  if (!x.device().is_cuda()) {
    reduce(ctx, x, view_of(&out, {1}));
    return out;
  }
  Scratch scratch(ctx);
  const TensorView there = scratch.take({1}, DType::f64);
  reduce(ctx, x, there);
  return read_back<double>(ctx, there)[0];
}

/// Whether the solver, given a view for its status, reports success.
template <class Solve>
bool succeeds(Context& ctx, Solve&& solve) {
  std::int32_t info = 0;
  if (!ctx.device().is_cuda()) {
    solve(view_of(&info, {1}));
    return info == 0;
  }
  Scratch scratch(ctx);
  const TensorView there = scratch.take({1}, DType::i32);
  solve(there);
  return read_back<std::int32_t>(ctx, there)[0] == 0;
}

bool is_finite(Context& ctx, ConstTensorView x) {
  return std::isfinite(number_of(ctx, ops::max_abs, x));
}

/// Computes the lower triangle of out[n,n] = x x' for rows x[n,d], in blocks of rows, so that
/// little is computed above the diagonal. Not rounded to TF32, whose error would exceed a small
/// damping.
void gram_of_rows(Context& ctx, ConstTensorView x, TensorView out) {
  const ExactProducts exact(ctx);
  constexpr std::int64_t kRows = 256;
  const std::int64_t n = x.dim(0);
  for (std::int64_t r = 0; r < n; r += kRows) {
    const std::int64_t rows = std::min(kRows, n - r);
    ops::gemm(ctx, Trans::no, Trans::yes, 1, x.slice(0, r, rows), x.slice(0, 0, r + rows), 0,
              out.slice(0, r, rows).slice(1, 0, r + rows));
  }
}

/// Writes the lower triangle of the matrix to factorise: M + shift*I, or X X' + shift*I for rows X.
void write_damped(Context& ctx, FactorForm form, ConstTensorView average, double shift,
                  TensorView square) {
  if (form == FactorForm::low_rank) {
    gram_of_rows(ctx, average, square);
  } else {
    ops::unpack_lower(ctx, average, square, Upper::untouched);
  }
  if (shift != 0) ops::add_diagonal(ctx, square, shift);
}

/// One stage: tries to write the inverse into `out`, of average.dtype().
bool factorise(Context& ctx, const Solvers& solvers, FactorForm form, const Inverted& m,
               TensorView out) {
  if (!std::isfinite(m.shift)) return false;  // Ten times the requested damping may overflow.
  Scratch scratch(ctx);
  const bool rows = form == FactorForm::low_rank;
  const TensorView square = rows ? scratch.take({out.dim(0), out.dim(0)}, out.dtype()) : out;
  write_damped(ctx, form, m.average, m.shift, square);
  if (!succeeds(ctx, [&](TensorView info) { solvers.potrf(ctx, square, info); })) return false;
  if (form == FactorForm::inverse) {
    if (!succeeds(ctx, [&](TensorView info) { solvers.potri(ctx, out, info); })) return false;
  } else if (rows) {
    kernels::solve_rows(ctx, square, m.average, out);
  } else {
    invert_diagonal_blocks(ctx, square);
  }
  return inverts(ctx, form, m, out);
}

/// Copies the result of a stage to its destination.
void commit(Context& ctx, FactorForm held, TensorView from, TensorView to) {
  if (held == FactorForm::low_rank || held == FactorForm::eigen) return ops::copy(ctx, from, to);
  for_blocks(to.dim(0), [&](std::int64_t k, std::int64_t n) {
    ops::copy(ctx, from.slice(0, k, n).slice(1, 0, k + n), to.slice(0, k, n).slice(1, 0, k + n));
  });
  if (held == FactorForm::inverse) ops::symmetrize(ctx, to);
}

/// The average in f64.
TensorView widen(Context& ctx, Scratch& scratch, ConstTensorView average) {
  const TensorView wide = scratch.take(average.shape(), DType::f64);
  ops::cast(ctx, average, wide);
  return wide;
}

/// Like factorise(), but in f64, with the result rounded to out.dtype(). A Cholesky factor cannot
/// be rounded, since that perturbs M + shift*I relative to its norm; an inverse can.
bool factorise_wide(Context& ctx, const Solvers& solvers, FactorForm form, const Inverted& m,
                    TensorView out) {
  Scratch scratch(ctx);
  const Inverted wide{widen(ctx, scratch, m.average), m.shift};
  const TensorView result = scratch.take(out.shape(), DType::f64);
  if (!factorise(ctx, solvers, form, wide, result)) return false;
  if (form == FactorForm::inverse) ops::symmetrize(ctx, result);
  ops::cast(ctx, result, out);
  return inverts(ctx, form, m, out);
}

/// The eigenvector stage, in f64. The result is not an inverse of M + shift*I where M has negative
/// eigenvalues, so the residual check does not apply; instead the eigendecomposition must reproduce
/// M.
bool clip(Context& ctx, const Solvers& solvers, FactorForm form, const Inverted& m,
          TensorView out) {
  Scratch scratch(ctx);
  const std::int64_t n = out.dim(0);
  const TensorView average = widen(ctx, scratch, m.average);
  const TensorView q = scratch.take({n, n}, DType::f64), w = scratch.take({n}, DType::f64);
  const bool rows = form == FactorForm::low_rank;
  write_damped(ctx, form, average, 0, q);
  ConstTensorView decomposed = average;
  if (rows) {
    const TensorView gram = scratch.take({ops::packed_size(n)}, DType::f64);
    ops::pack_lower(ctx, q, gram);
    decomposed = gram;
  }
  if (!succeeds(ctx, [&](TensorView info) { solvers.eigh(ctx, q, w, info); })) return false;
  if (!decomposes(ctx, decomposed, q, w)) return false;
  // A damping below the rounding of M in f64 would only amplify that rounding.
  const double noise = static_cast<double>(n) * std::numeric_limits<double>::epsilon();
  if (!(m.shift > noise * read_back<double>(ctx, w.slice(0, n - 1, 1))[0])) return false;
  const TensorView scaled = scratch.take({n, n}, DType::f64);
  const TensorView result = scratch.take(out.shape(), DType::f64);
  kernels::scale_vectors(ctx, q, w, m.shift, scaled);
  if (rows) {
    ops::gemm(ctx, Trans::yes, Trans::no, 1, scaled, average, 0, result);
  } else {
    ops::gemm(ctx, Trans::no, Trans::yes, 1, scaled, scaled, 0, result);
  }
  ops::cast(ctx, result, out);
  const double largest = number_of(ctx, ops::max_abs, out);
  return std::isfinite(largest) && (largest > 0 || rows);
}

InverseResult try_stages(Context& ctx, const FactorGroup& block, double shift,
                         const Solvers& solvers) {
  const DType dtype = block.inverse.dtype();
  const FactorForm explicit_form =
      block.form == FactorForm::cholesky ? FactorForm::inverse : block.form;
  Scratch scratch(ctx);
  const TensorView out = scratch.take(block.inverse.shape(), dtype);
  const auto done = [&](InverseStage stage, double damping, FactorForm held) {
    commit(ctx, held, out, block.inverse);
    return InverseResult{stage, damping, held};
  };
  const double requested = round_to(dtype, shift), more = round_to(dtype, kMoreDamping * shift);
  if (factorise(ctx, solvers, block.form, {block.average, requested}, out))
    return done(InverseStage::damped, requested, block.form);
  if (factorise(ctx, solvers, block.form, {block.average, more}, out))
    return done(InverseStage::more_damped, more, block.form);
  if (dtype != DType::f64 &&
      factorise_wide(ctx, solvers, explicit_form, {block.average, requested}, out))
    return done(InverseStage::f64, requested, explicit_form);
  if (clip(ctx, solvers, explicit_form, {block.average, requested}, out))
    return done(InverseStage::clipped, requested, explicit_form);
  return {};
}

bool decompose(Context& ctx, const Solvers& solvers, ConstTensorView average, TensorView vectors,
               TensorView values) {
  ops::unpack_lower(ctx, average, vectors, Upper::untouched);
  return succeeds(ctx, [&](TensorView info) { solvers.eigh(ctx, vectors, values, info); }) &&
         decomposes(ctx, average, vectors, values);
}

bool decompose_wide(Context& ctx, const Solvers& solvers, ConstTensorView average,
                    TensorView vectors, TensorView values) {
  Scratch scratch(ctx);
  const TensorView wide = widen(ctx, scratch, average);
  const TensorView q = scratch.take(vectors.shape(), DType::f64);
  const TensorView w = scratch.take(values.shape(), DType::f64);
  if (!decompose(ctx, solvers, wide, q, w)) return false;
  ops::cast(ctx, q, vectors);
  ops::cast(ctx, w, values);
  return is_finite(ctx, values);
}

InverseResult try_eigen(Context& ctx, const FactorGroup& block, const Solvers& solvers) {
  const DType dtype = block.inverse.dtype();
  Scratch scratch(ctx);
  const TensorView vectors = scratch.take(block.inverse.shape(), dtype);
  const TensorView values = scratch.take(block.values.shape(), dtype);
  InverseStage stage = InverseStage::damped;
  if (!decompose(ctx, solvers, block.average, vectors, values)) {
    stage = InverseStage::f64;
    if (dtype == DType::f64 || !decompose_wide(ctx, solvers, block.average, vectors, values))
      return {};
  }
  const bool clipped = kernels::clip_eigenvalues(ctx, values);
  ops::copy(ctx, vectors, block.inverse);
  ops::copy(ctx, values, block.values);
  return {clipped ? InverseStage::clipped : stage, 1, FactorForm::eigen};
}

}  // namespace

bool leaves_room(DType dtype, double shift) {
  const double largest = dtype == DType::f32
                             ? static_cast<double>(std::numeric_limits<float>::max())
                             : std::numeric_limits<double>::max();
  return std::isfinite(shift) && 1 / shift <= largest * kRoom;
}

InverseResult rebuild_inverse(Context& ctx, const FactorGroup& block, double shift,
                              const Solvers& solvers) {
  if (!is_finite(ctx, block.average)) return {};
  if (block.form == FactorForm::eigen) return try_eigen(ctx, block, solvers);
  if (!leaves_room(block.inverse.dtype(), round_to(block.inverse.dtype(), shift))) return {};
  return try_stages(ctx, block, shift, solvers);
}

InverseResult invert_identity(Context& ctx, const FactorGroup& block, double shift) {
  const double damping = round_to(block.inverse.dtype(), shift);
  if (!leaves_room(block.inverse.dtype(), damping)) return {};
  const double root = std::sqrt(1 / damping);
  const double element = block.form == FactorForm::cholesky ? root : 1 / damping;
  const double rounded = round_to(block.inverse.dtype(), element);
  if (rounded == 0) return {};
  ops::fill(ctx, block.inverse, 0);
  // The blocks of a Cholesky factor are inverted: sqrt(shift) becomes its reciprocal.
  if (block.form != FactorForm::low_rank) ops::add_diagonal(ctx, block.inverse, rounded);
  return {InverseStage::damped, damping, block.form};
}

}  // namespace dkfac::kfac
