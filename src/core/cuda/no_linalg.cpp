#include "dkfac/core/error.h"

#include "core/backend_linalg.h"
#include "core/shared/cuda/batched.h"
#include "core/shared/cuda/linalg16.h"

namespace dkfac::cuda {
namespace {

[[noreturn]] void refuse_linalg(const char* operation) {
  throw DeviceError(
      detail::concat("[", operation, "] this build has no CUDA backend; use Device::cpu()"));
}

}  // namespace

void gemm(Context&, ops::Trans, ops::Trans, double, ConstTensorView, ConstTensorView, double,
          TensorView) {
  refuse_linalg("gemm");
}
void syrk(Context&, double, ConstTensorView, double, TensorView) { refuse_linalg("syrk"); }
void potrf(Context&, TensorView, TensorView) { refuse_linalg("potrf"); }
void potri(Context&, TensorView, TensorView) { refuse_linalg("potri"); }
void eigh(Context&, TensorView, TensorView, TensorView) { refuse_linalg("eigh"); }

void gemm_batched(Context&, ops::Trans, ops::Trans, double, ConstTensorView, ConstTensorView,
                  double, TensorView) {
  refuse_linalg("gemm_batched");
}
void potrf_batched(Context&, TensorView, TensorView) { refuse_linalg("potrf_batched"); }
void potri_batched(Context&, ConstTensorView, TensorView) { refuse_linalg("potri_batched"); }
void gemm16(Context&, ops::Trans, ops::Trans, double, ConstTensorView, ConstTensorView, double,
            TensorView) {
  refuse_linalg("gemm16");
}
void gemm16_batched(Context&, ops::Trans, ops::Trans, double, ConstTensorView, ConstTensorView,
                    double, TensorView) {
  refuse_linalg("gemm16_batched");
}

}  // namespace dkfac::cuda
