#include "dkfac/core/error.h"

#include "kfac/inverse/backend_inverse.h"

namespace dkfac::kfac::cuda {
namespace {

[[noreturn]] void refuse_inverse(const char* operation) {
  throw DeviceError(
      detail::concat("[", operation, "] this build has no CUDA backend; use Device::cpu()"));
}

}  // namespace

void invert_factor(Context&, ConstTensorView, double, TensorView, TensorView) {
  refuse_inverse("invert factor");
}
void decompose_factor(Context&, ConstTensorView, TensorView, TensorView, TensorView) {
  refuse_inverse("decompose factor");
}
void divide_by_products(Context&, TensorView, ConstTensorView, ConstTensorView, double) {
  refuse_inverse("precondition eigen");
}
void divide_by_scales(Context&, TensorView, ConstTensorView, double) {
  refuse_inverse("precondition eigen");
}
void solve_batch_norm(Context&, BatchNormFisher, ConstTensorView, double, TensorView, TensorView) {
  refuse_inverse("precondition batch norm");
}
void divide(Context&, TensorView, ConstTensorView) { refuse_inverse("precondition"); }
void apply_groups(Context&, ConstTensorView, ConstTensorView, TensorView, TensorView) {
  refuse_inverse("precondition");
}

}  // namespace dkfac::kfac::cuda
