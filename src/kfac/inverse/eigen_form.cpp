#include "dkfac/core/ops.h"

#include "kfac/inverse/backend_robust_inverse.h"
#include "kfac/inverse/factor_plan.h"
#include "kfac/inverse/residual.h"
#include "kfac/inverse/robust_inverse.h"

/// FactorForm::eigen
namespace dkfac::kfac {
namespace {

/// Cost of an eigendecomposition in factorisations with inversion (docs/benchmarks.md).
constexpr double kEigen = 10;

class EigenForm final : public FactorForm {
 public:
  constexpr EigenForm() : FactorForm("eigen", 2) {}

  Costs costs(const FactorPlan& plan) const override {
    return matrices(plan, kEigen * kFactorisation, 4);
  }
  /// Without damping.
  InverseResult rebuild(Context& ctx, const FactorGroup& block, double,
                        const Solvers& solvers) const override {
    const DType dtype = block.inverse.dtype();
    Scratch scratch(ctx);
    const TensorView vectors = scratch.take(block.inverse.shape(), dtype);
    const TensorView values = scratch.take(block.values.shape(), dtype);
    const auto decompose = [&](bool wide) {
      ConstTensorView average = block.average;
      TensorView q = vectors, w = values;
      if (wide) {
        average = widen(ctx, scratch, average);
        q = scratch.take(vectors.shape(), DType::f64);
        w = scratch.take(values.shape(), DType::f64);
      }
      ops::unpack_lower(ctx, average, q, ops::Upper::untouched);
      if (!succeeds(ctx, [&](TensorView info) { solvers.eigh(ctx, q, w, info); }) ||
          !decomposes(ctx, average, q, w))
        return false;
      if (!wide) return true;
      ops::cast(ctx, q, vectors);
      ops::cast(ctx, w, values);
      return is_finite(ctx, values);
    };
    InverseStage stage = InverseStage::damped;
    if (!decompose(false)) {
      stage = InverseStage::f64;
      if (dtype == DType::f64 || !decompose(true)) return {};
    }
    const bool clipped = kernels::clip_eigenvalues(ctx, values);
    ops::copy(ctx, vectors, block.inverse);
    ops::copy(ctx, values, block.values);
    return {clipped ? InverseStage::clipped : stage, 1, this};
  }
};
constexpr EigenForm kEigenForm;

}  // namespace

const FactorForm* const FactorForm::eigen = &kEigenForm;

}  // namespace dkfac::kfac
