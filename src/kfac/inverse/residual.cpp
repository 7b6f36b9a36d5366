#include "kfac/inverse/residual.h"

#include "kfac/inverse/backend_robust_inverse.h"

namespace dkfac::kfac {

bool inverts(Context& ctx, FactorForm form, const Inverted& m, ConstTensorView x) {
  return kernels::inverts(ctx, form, m, x);
}

bool decomposes(Context& ctx, ConstTensorView average, ConstTensorView vectors,
                ConstTensorView values) {
  return kernels::decomposes(ctx, average, vectors, values);
}

}  // namespace dkfac::kfac
