#include "dkfac/core/error.h"

#include "kfac/schedule/backend_step.h"

namespace dkfac::kfac::cuda {
namespace {

[[noreturn]] void refuse_step(const char* operation) {
  throw DeviceError(
      detail::concat("[", operation, "] this build has no CUDA backend; use Device::cpu()"));
}

}  // namespace

void measure_drift(Context&, SymmetricForm, ConstTensorView, ConstTensorView, TensorView) {
  refuse_step("drift");
}
void packed_diagonals(Context&, ConstTensorView, std::int64_t, TensorView) { refuse_step("merge"); }

}  // namespace dkfac::kfac::cuda
