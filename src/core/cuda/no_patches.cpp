#include "dkfac/core/error.h"

#include "core/backend_linalg.h"

namespace dkfac::cuda {
namespace {

[[noreturn]] void refuse(const char* operation) {
  throw DeviceError(
      detail::concat("[", operation, "] this build has no CUDA backend; use Device::cpu()"));
}

}  // namespace

void mirror_lower(Context&, TensorView) { refuse("mirror_lower"); }
void add_diagonal(Context&, TensorView, double) { refuse("add_diagonal"); }
void scale_matrix(Context&, double, TensorView) { refuse("gemm"); }
void scale_lower(Context&, double, TensorView) { refuse("syrk"); }
void im2col(Context&, const ops::PatchSpec&, ConstTensorView, TensorView) { refuse("im2col"); }
void patch_gram(Context&, const ops::PatchSpec&, double, ConstTensorView, double, TensorView,
                ops::PatchMethod) {
  refuse("patch_gram");
}
void patch_sum(Context&, const ops::PatchSpec&, double, ConstTensorView, TensorView) {
  refuse("patch_sum");
}
void gram(Context&, double, ConstTensorView, double, TensorView) { refuse("gram"); }

}  // namespace dkfac::cuda
