#include "dkfac/core/error.h"

#include "kfac/inverse/backend_ladder.h"

namespace dkfac::kfac::cuda {
namespace {

[[noreturn]] void refuse() {
  throw DeviceError("[ladder] this build has no CUDA backend; use Device::cpu()");
}

}  // namespace

void solve_rows(Context&, TensorView, ConstTensorView, TensorView) { refuse(); }
void scale_vectors(Context&, ConstTensorView, ConstTensorView, double, TensorView) { refuse(); }
bool clip_eigenvalues(Context&, TensorView) { refuse(); }
bool inverts(Context&, FactorForm, const Inverted&, ConstTensorView) { refuse(); }
bool decomposes(Context&, ConstTensorView, ConstTensorView, ConstTensorView) { refuse(); }

}  // namespace dkfac::kfac::cuda
