#include "dkfac/core/error.h"

#include "core/backend.h"

namespace dkfac::cuda {
namespace {

[[noreturn]] void refuse(const char* operation) {
  throw DeviceError(
      detail::concat("[", operation, "] this build has no CUDA backend; use ", "Device::cpu()"));
}

}  // namespace

void copy(Context&, ConstTensorView, TensorView) { refuse("copy"); }
void fill(Context&, TensorView, double) { refuse("fill"); }
void cast(Context&, ConstTensorView, TensorView, double) { refuse("cast"); }
void axpby(Context&, double, ConstTensorView, double, TensorView) { refuse("axpby"); }
void copy_checked(Context&, double, ConstTensorView, TensorView, TensorView) {
  refuse("copy_checked");
}
void round_to(Context&, DType, double, ConstTensorView, TensorView, TensorView) {
  refuse("round_to");
}

}  // namespace dkfac::cuda
