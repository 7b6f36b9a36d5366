#include "kfac/inverse/diagonal_factor.h"

#include "dkfac/core/ops.h"

#include "core/shared/exact_products.h"
#include "core/shared/host.h"
#include "kfac/inverse/apply_factor.h"
#include "kfac/inverse/backend_inverse.h"

namespace dkfac::kfac {
namespace {

class DiagonalForm final : public FactorForm {
 public:
  constexpr DiagonalForm() : FactorForm("diagonal", 4) {}

  Shape average_shape(const FactorPlan& plan) const override { return {plan.dim}; }
  std::int64_t inverse_rows(const FactorPlan&) const override { return 1; }
  Costs costs(const FactorPlan& plan) const override {
    const auto n = static_cast<double>(plan.dim);
    return {.refresh_operations = n, .apply_operations = n, .inverse_flops = n};
  }
  double build_flops(const FactorPlan&, double rows) const override { return rows; }
  void trace(Context& ctx, const FactorPlan&, ConstTensorView average,
             TensorView traces) const override {
    ops::sum(ctx, average, traces);
  }
  void squares(Context& ctx, const FactorPlan&, ConstTensorView average,
               TensorView traces) const override {
    ops::dot(ctx, average, average, traces);
  }
};
constexpr DiagonalForm kDiagonal;

}  // namespace

const FactorForm* const FactorForm::diagonal = &kDiagonal;

void store_diagonal(Context& ctx, Factor& factor) {
  // The damping s, representable in the factor's dtype, as all workers of the layer receive it. It
  // is given as -s where a factor of the layer is zero, so that the inverse is that of sI.
  const DType dtype = factor.average.dtype();
  Scratch scratch(ctx);
  const TensorView keep = scratch.take({1, 1}, dtype), size = scratch.take({1}, dtype);
  const TensorView two = scratch.take({1}, dtype);
  ops::cast(ctx, factor.requested_damping, keep.flat());
  ops::max_abs(ctx, keep.flat(), factor.shifts);
  ops::cast(ctx, factor.shifts, size);
  ops::axpby(ctx, 1, size, 1, keep.flat());
  ops::fill(ctx, two, 2);
  kernels::divide_by_products(ctx, keep, size, two, {0});  // (s + s) / 2s or (s - s) / 2s.
  const ExactProducts exact(ctx);
  ops::gemm(ctx, ops::Trans::no, ops::Trans::no, 1, factor.average.view().reshape({factor.dim, 1}),
            keep, 0, factor.inverse.view().reshape({factor.dim, 1}));
  factor.stored_form.data<std::int32_t>()[0] = factor.form->index;
}

void apply_diagonal(Context& ctx, const CurvatureOptions& options, const LayerCurvature& layer,
                    TensorView weight) {
  const Factor &a = layer.a, &g = layer.g;
  // The transpose of a Linear's [out,d]: rows are divided by the diagonal of A.
  const TensorView v = weight.reshape({a.dim, g.width()});
  const ConstTensorView diagonal = a.inverse.view().flat();
  Scratch scratch(ctx);
  if (g.has_values()) {
    using ops::Trans;
    const ConstTensorView vectors = g.inverse.view().reshape({g.dim, g.dim});
    const TensorView projected = scratch.take_aligned(v.shape(), v.dtype());
    ops::gemm(ctx, Trans::no, Trans::no, 1, v, vectors, 0, projected);
    const ConstTensorView values = g.values.view().flat();
    kernels::divide_by_products(ctx, projected, diagonal, values,
                                eigen_damping(ctx, scratch, options, diagonal, values));
    return ops::gemm(ctx, Trans::no, Trans::yes, 1, projected, vectors, 0, v);
  }
  // On a device the damping is not known to the host: a view of one element, repeated `dim` times.
  const TensorView shift = scratch.take({1}, v.dtype()), damped = scratch.take({a.dim}, v.dtype());
  const TensorView ones = scratch.take({g.width()}, v.dtype());
  ops::cast(ctx, a.shifts, shift);
  ops::copy(ctx, TensorView{shift.raw(), v.dtype(), {a.dim}, {0}, v.device()}, damped);
  ops::axpby(ctx, 1, diagonal, 1, damped);
  ops::fill(ctx, ones, 1);
  kernels::divide_by_products(ctx, v, damped, ones, {0});
  apply_right(ctx, applied_factor(g, 0), {v, {}});
}

void invert_diagonal(TensorView copy, double shift) {
  with_real("read factors", copy.dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (std::int64_t i = 0; i < copy.numel(); ++i)
      copy.data<T>()[i] = 1 / (copy.data<T>()[i] + static_cast<T>(shift));
  });
}

}  // namespace dkfac::kfac
