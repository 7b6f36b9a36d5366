#include <algorithm>
#include <cmath>

#include "dkfac/core/ops.h"
#include "dkfac/core/threads.h"

#include "core/shared/workers.h"
#include "kfac/inverse/apply_factor.h"
#include "kfac/inverse/block_triangular.h"
#include "kfac/inverse/factor_plan.h"
#include "kfac/inverse/residual.h"
#include "kfac/inverse/robust_inverse.h"

/// FactorForm::cholesky
namespace dkfac::kfac {
namespace {

using ops::Trans;

/// Extra cost of a blocked solve over one large product, in widths of a block. It needs slightly
/// more operations, in smaller products (gradients [256,2304] to [512,4608] and [512,785]: 12 to 50
/// % of the product).
constexpr double kBlocks = 2.5;

/// Computes to = (L L')^-1 from for a blocked L, by two solves over blocks of rows. `between` is
/// scratch; `from` is overwritten.
void solve_left(Context& ctx, ConstTensorView l, const Columns& from, const Columns& between,
                const Columns& to) {
  const std::int64_t d = l.dim(0);
  for_parts(from, to, [&](std::int64_t c, std::int64_t n) {
    const TensorView x = from.columns(c, n), y = between.columns(c, n), z = to.columns(c, n);
    for_blocks(d, [&](std::int64_t k, std::int64_t rows) {
      const TensorView rest = x.slice(0, k, rows);
      if (k > 0)
        ops::gemm(ctx, Trans::no, Trans::no, -1, block_of(l, k, rows, 0, k), y.slice(0, 0, k), 1,
                  rest);
      ops::gemm(ctx, Trans::no, Trans::no, 1, block_of(l, k, rows, k, rows), rest, 0,
                y.slice(0, k, rows));
    });
    for_blocks_backward(d, [&](std::int64_t k, std::int64_t rows) {
      const TensorView rest = y.slice(0, k, rows);
      const std::int64_t below = k + rows;
      if (below < d)
        ops::gemm(ctx, Trans::yes, Trans::no, -1, block_of(l, below, d - below, k, rows),
                  z.slice(0, below, d - below), 1, rest);
      ops::gemm(ctx, Trans::yes, Trans::no, 1, block_of(l, k, rows, k, rows), rest, 0,
                z.slice(0, k, rows));
    });
  });
}

/// Computes to = from (L L')^-1, by two solves over blocks of columns; `between` is one matrix.
void solve_right(Context& ctx, ConstTensorView l, const Columns& from, TensorView between,
                 const Columns& to) {
  const std::int64_t d = l.dim(0);
  const auto split = [&](std::int64_t first, std::int64_t count, auto&& f) {
    for_parts(from, to, first, count, f);
  };
  for_blocks(d, [&](std::int64_t k, std::int64_t width) {
    const TensorView solved = between.slice(1, k, width);
    split(k, width, [&](std::int64_t c, std::int64_t n) {
      const TensorView rest = from.columns(c, n);
      if (k > 0)
        ops::gemm(ctx, Trans::no, Trans::yes, -1, between.slice(1, 0, k), block_of(l, c, n, 0, k),
                  1, rest);
      ops::gemm(ctx, Trans::no, Trans::yes, 1, rest, block_of(l, k, width, c, n), c == k ? 0 : 1,
                solved);
    });
  });
  for_blocks_backward(d, [&](std::int64_t k, std::int64_t width) {
    const TensorView rest = between.slice(1, k, width);
    const std::int64_t after = k + width;
    if (after < d)
      split(after, d - after, [&](std::int64_t c, std::int64_t n) {
        ops::gemm(ctx, Trans::no, Trans::no, -1, to.columns(c, n), block_of(l, c, n, k, width), 1,
                  rest);
      });
    split(k, width, [&](std::int64_t c, std::int64_t n) {
      ops::gemm(ctx, Trans::no, Trans::no, 1, rest, block_of(l, k, width, c, n), 0,
                to.columns(c, n));
    });
  });
}

/// Calls f(worker, first, count) in parallel for parts of `n` independent right-hand sides. Whole
/// solves in parallel synchronize less than threads within each of their small products.
template <class F>
void for_parts_of_solve(Context& ctx, std::int64_t d, std::int64_t n, F&& f) {
  // Least size of a part that makes an efficient product, and least operations per thread.
  constexpr std::int64_t kLeast = 64, kGrain = 4'000'000;
  const std::int64_t worth = std::min(n / kLeast, 2 * n * d * d / kGrain);
  const std::int64_t parts = std::clamp<std::int64_t>(worth, 1, threads());
  dkfac::cpu::parallel_workers(ctx, static_cast<int>(parts), [&](Context& worker, int part) {
    const std::int64_t first = n * part / parts, end = n * (part + 1) / parts;
    f(worker, first, end - first);
  });
}

void solve_left_in_parts(Context& ctx, ConstTensorView l, const Columns& from,
                         const Columns& between, const Columns& to) {
  const auto solve = [&](Context& worker, std::int64_t first, std::int64_t count) {
    const auto part = [&](const Columns& v) { return Columns{v.columns(first, count), {}}; };
    solve_left(worker, l, part(from), part(between), part(to));
  };
  // Up to the first bias, which is stored separately.
  const std::int64_t width = std::min(from.width(), to.width());
  for_parts_of_solve(ctx, l.dim(0), width, solve);
  if (width < from.d()) solve(ctx, width, 1);
}

void solve_right_in_parts(Context& ctx, ConstTensorView l, const Columns& from, TensorView between,
                          const Columns& to) {
  for_parts_of_solve(ctx, l.dim(0), from.rows(),
                     [&](Context& worker, std::int64_t first, std::int64_t count) {
                       const auto part = [&](const Columns& v) {
                         return Columns{v.weight.slice(0, first, count),
                                        v.bias.empty() ? v.bias : v.bias.slice(0, first, count)};
                       };
                       solve_right(worker, l, part(from), between.slice(0, first, count), part(to));
                     });
}

class CholeskyForm final : public FactorForm {
 public:
  constexpr CholeskyForm() : FactorForm("Cholesky", 1, true) {}

  void unpack(Context& ctx, ConstTensorView triangle, TensorView square) const override {
    ops::fill(ctx, square, 0);
    ops::unpack_lower(ctx, triangle, square, ops::Upper::untouched);
  }
  Costs costs(const FactorPlan& plan) const override {
    const auto n = static_cast<double>(plan.dim),
               block = static_cast<double>(solve_block(plan.dim));
    return {.refresh_operations = plan.groups * kFactorisation * n * n * n / 3,
            .apply_operations = plan.groups * 2 * n * (n + kBlocks * block),
            .inverse_flops = plan.groups * n * n * n};
  }
  bool factorise(Context& ctx, const Solvers& solvers, const Inverted& m,
                 TensorView out) const override {
    if (!factorise_damped(ctx, solvers, m, out)) return false;
    invert_diagonal_blocks(ctx, out);
    return inverts(ctx, {.average = m.average, .shift = m.shift, .factored = true}, out);
  }
  void commit(Context& ctx, ConstTensorView from, TensorView to) const override {
    for_blocks(to.dim(0), [&](std::int64_t k, std::int64_t n) {
      ops::copy(ctx, block_of(from, k, n, 0, k + n), to.slice(0, k, n).slice(1, 0, k + n));
    });
  }
  /// A Cholesky factor cannot be rounded, since that perturbs M + shift*I relative to its norm; an
  /// inverse can.
  const FactorForm* fallback() const override { return inverse; }
  /// The blocks are inverted: the root of the damping becomes its reciprocal.
  double identity(double x) const override { return std::sqrt(x); }
  void apply(Context& ctx, Side side, const AppliedFactor& factor, const Columns& from,
             const Columns& to) const override {
    Scratch scratch(ctx);
    const TensorView between = scratch.take_aligned({from.rows(), from.d()}, from.weight.dtype());
    if (side == Side::left)
      solve_left_in_parts(ctx, factor.inverse, from, {between, {}}, to);
    else
      solve_right_in_parts(ctx, factor.inverse, from, between, to);
  }
};
constexpr CholeskyForm kCholesky;

}  // namespace

const FactorForm* const FactorForm::cholesky = &kCholesky;

}  // namespace dkfac::kfac
