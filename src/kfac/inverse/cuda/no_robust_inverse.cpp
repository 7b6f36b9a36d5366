#include "dkfac/core/error.h"

#include "kfac/inverse/backend_robust_inverse.h"

namespace dkfac::kfac::cuda {
namespace {

[[noreturn]] void refuse_inverse_stage() {
  throw DeviceError("[inverse] this build has no CUDA backend; use Device::cpu()");
}

}  // namespace

void solve_rows(Context&, TensorView, ConstTensorView, TensorView) { refuse_inverse_stage(); }
void scale_vectors(Context&, ConstTensorView, ConstTensorView, double, TensorView) {
  refuse_inverse_stage();
}
bool clip_eigenvalues(Context&, TensorView) { refuse_inverse_stage(); }
bool inverts(Context&, FactorForm, const Inverted&, ConstTensorView) { refuse_inverse_stage(); }
bool decomposes(Context&, ConstTensorView, ConstTensorView, ConstTensorView) {
  refuse_inverse_stage();
}

}  // namespace dkfac::kfac::cuda
