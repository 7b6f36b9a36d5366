#include "dkfac/core/error.h"

#include "core/backend_linalg.h"

namespace dkfac::cuda {
namespace {

[[noreturn]] void refuse(const char* operation) {
  throw DeviceError(
      detail::concat("[", operation, "] this build has no CUDA backend; use Device::cpu()"));
}

}  // namespace

void gemm(Context&, ops::Trans, ops::Trans, double, ConstTensorView, ConstTensorView, double,
          TensorView) {
  refuse("gemm");
}
void syrk(Context&, double, ConstTensorView, double, TensorView) { refuse("syrk"); }
void potrf(Context&, TensorView, TensorView) { refuse("potrf"); }
void potri(Context&, TensorView, TensorView) { refuse("potri"); }
void eigh(Context&, TensorView, TensorView, TensorView) { refuse("eigh"); }

}  // namespace dkfac::cuda
