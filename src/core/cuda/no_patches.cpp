#include "dkfac/core/error.h"

#include "core/backend_linalg.h"

namespace dkfac::cuda {
namespace {

[[noreturn]] void refuse_patches(const char* operation) {
  throw DeviceError(
      detail::concat("[", operation, "] this build has no CUDA backend; use Device::cpu()"));
}

}  // namespace

void symmetrize(Context&, TensorView) { refuse_patches("symmetrize"); }
void add_diagonal(Context&, TensorView, double) { refuse_patches("add_diagonal"); }
void scale_matrix(Context&, double, TensorView) { refuse_patches("gemm"); }
void scale_lower(Context&, double, TensorView) { refuse_patches("syrk"); }
void im2col(Context&, const ops::PatchSpec&, ConstTensorView, TensorView) {
  refuse_patches("im2col");
}
void patch_gram(Context&, const ops::PatchSpec&, double, ConstTensorView, double, TensorView,
                ops::PatchMethod) {
  refuse_patches("patch_gram");
}
void patch_sum(Context&, const ops::PatchSpec&, double, ConstTensorView, TensorView) {
  refuse_patches("patch_sum");
}
void gram(Context&, double, ConstTensorView, double, TensorView) { refuse_patches("gram"); }

}  // namespace dkfac::cuda
