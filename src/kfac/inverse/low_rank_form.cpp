#include <algorithm>

#include "dkfac/core/ops.h"

#include "core/shared/exact_products.h"
#include "kfac/inverse/apply_factor.h"
#include "kfac/inverse/backend_inverse.h"
#include "kfac/inverse/backend_robust_inverse.h"
#include "kfac/inverse/factor_plan.h"
#include "kfac/inverse/residual.h"
#include "kfac/inverse/robust_inverse.h"
#include "kfac/schedule/backend_step.h"

/// FactorForm::low_rank
namespace dkfac::kfac {
namespace {

using ops::Trans;

// Along the rows of Y, (I - Y'Y) v is a small difference of large numbers that is then divided by
// the damping, so products here are not rounded to TF32.

/// Computes x <- (x - a b) / shift, with a' where `trans` says so.
void subtract_and_divide(Context& ctx, const AppliedFactor& factor, Trans trans, ConstTensorView a,
                         ConstTensorView b, TensorView x) {
  if (!x.device().is_cuda())
    return ops::gemm(ctx, trans, Trans::no, -1 / factor.shift, a, b, 1 / factor.shift, x);
  ops::gemm(ctx, trans, Trans::no, -1, a, b, 1, x);
  cuda::divide(ctx, x, factor.device_shift);
}

/// Computes v <- (I - Y'Y) v / shift.
void project_left(Context& ctx, const AppliedFactor& g, const Columns& v) {
  const ExactProducts exact(ctx);
  Scratch scratch(ctx);
  for_parts(v, v, [&](std::int64_t c, std::int64_t n) {
    const TensorView x = v.columns(c, n);
    const TensorView product = scratch.take_aligned({g.inverse.dim(0), n}, x.dtype());
    ops::gemm(ctx, Trans::no, Trans::no, 1, g.inverse, x, 0, product);
    subtract_and_divide(ctx, g, Trans::yes, g.inverse, product, x);
  });
}

/// Computes v <- v (I - Y'Y) / shift.
void project_right(Context& ctx, const AppliedFactor& a, const Columns& v) {
  const ExactProducts exact(ctx);
  Scratch scratch(ctx);
  const TensorView product = scratch.take_aligned({v.rows(), a.inverse.dim(0)}, v.weight.dtype());
  for_parts(v, v, [&](std::int64_t c, std::int64_t n) {
    ops::gemm(ctx, Trans::no, Trans::yes, 1, v.columns(c, n), a.inverse.slice(1, c, n),
              c == 0 ? 0 : 1, product);
  });
  for_parts(v, v, [&](std::int64_t c, std::int64_t n) {
    subtract_and_divide(ctx, a, Trans::no, product, a.inverse.slice(1, c, n), v.columns(c, n));
  });
}

class LowRankForm final : public FactorForm {
 public:
  constexpr LowRankForm() : FactorForm("low rank", 3) {}

  Shape average_shape(const FactorPlan& plan) const override { return {plan.rows, plan.dim}; }
  std::int64_t inverse_rows(const FactorPlan& plan) const override { return plan.rows; }
  Costs costs(const FactorPlan& plan) const override {
    const auto n = static_cast<double>(plan.dim), rows = static_cast<double>(plan.rows);
    // X X', its factor, L^-1 X
    return {.refresh_operations =
                rows * rows * n + kFactorisation * rows * rows * rows / 3 + rows * rows * n,
            .apply_operations = 4 * n * rows,
            .inverse_flops = 2 * rows * rows * n + rows * rows * rows};
  }
  double build_flops(const FactorPlan&, double) const override { return 0; }
  void trace(Context& ctx, const FactorPlan&, ConstTensorView average,
             TensorView traces) const override {
    kernels::sum_of_squares(ctx, average, traces);
  }
  /// tr (X'X)^2 = |X X'|^2
  void squares(Context& ctx, const FactorPlan& plan, ConstTensorView average,
               TensorView traces) const override {
    Scratch scratch(ctx);
    const TensorView square = scratch.take({plan.rows, plan.rows}, average.dtype());
    write_matrix(ctx, average.reshape(average_shape(plan)), square);
    ops::symmetrize(ctx, square);
    kernels::sum_of_squares(ctx, square, traces);
  }
  void write_average(Context& ctx, ConstTensorView average, TensorView m) const override {
    const ExactProducts exact(ctx);
    ops::syrk(ctx, 1, average, 0, m);
    ops::symmetrize(ctx, m);
  }

  /// X X', in blocks of rows, so that little is computed above the diagonal. Not rounded to TF32,
  /// whose error would exceed a small damping.
  void write_matrix(Context& ctx, ConstTensorView x, TensorView square) const override {
    const ExactProducts exact(ctx);
    constexpr std::int64_t kRows = 256;
    const std::int64_t n = x.dim(0);
    for (std::int64_t r = 0; r < n; r += kRows) {
      const std::int64_t rows = std::min(kRows, n - r);
      ops::gemm(ctx, Trans::no, Trans::yes, 1, x.slice(0, r, rows), x.slice(0, 0, r + rows), 0,
                square.slice(0, r, rows).slice(1, 0, r + rows));
    }
  }
  bool factorise(Context& ctx, const Solvers& solvers, const Inverted& m,
                 TensorView out) const override {
    Scratch scratch(ctx);
    const TensorView square = scratch.take({out.dim(0), out.dim(0)}, out.dtype());
    if (!factorise_damped(ctx, solvers, m, square)) return false;
    kernels::solve_rows(ctx, square, m.average, out);
    return inverts(ctx, m, out);
  }
  void write_clipped(Context& ctx, ConstTensorView s, ConstTensorView average,
                     TensorView out) const override {
    ops::gemm(ctx, Trans::yes, Trans::no, 1, s, average, 0, out);
  }
  double identity(double) const override { return 0; }
  void apply(Context& ctx, Side side, const AppliedFactor& factor, const Columns& from,
             const Columns& to) const override {
    if (!to.is(from)) copy_columns(ctx, from, to);
    (side == Side::left ? project_left : project_right)(ctx, factor, to);
  }
};
constexpr LowRankForm kLowRank;

}  // namespace

const FactorForm* const FactorForm::low_rank = &kLowRank;

}  // namespace dkfac::kfac
