#include "dkfac/core/error.h"

#include "kfac/inverse/backend_ladder.h"

namespace dkfac::kfac::cuda {
namespace {

[[noreturn]] void refuse_ladder() {
  throw DeviceError("[ladder] this build has no CUDA backend; use Device::cpu()");
}

}  // namespace

void solve_rows(Context&, TensorView, ConstTensorView, TensorView) { refuse_ladder(); }
void scale_vectors(Context&, ConstTensorView, ConstTensorView, double, TensorView) {
  refuse_ladder();
}
bool clip_eigenvalues(Context&, TensorView) { refuse_ladder(); }
bool inverts(Context&, FactorForm, const Inverted&, ConstTensorView) { refuse_ladder(); }
bool decomposes(Context&, ConstTensorView, ConstTensorView, ConstTensorView) { refuse_ladder(); }

}  // namespace dkfac::kfac::cuda
