#include "kfac/inverse/residual.h"

#include "kfac/inverse/backend_robust_inverse.h"

namespace dkfac::kfac {

bool inverts(Context& ctx, FactorForm form, const Inverted& m, ConstTensorView x) {
  return (x.device().is_cuda() ? cuda::inverts : cpu::inverts)(ctx, form, m, x);
}

bool decomposes(Context& ctx, ConstTensorView average, ConstTensorView vectors,
                ConstTensorView values) {
  const auto backend = vectors.device().is_cuda() ? cuda::decomposes : cpu::decomposes;
  return backend(ctx, average, vectors, values);
}

}  // namespace dkfac::kfac
