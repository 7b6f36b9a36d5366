#include "dkfac/core/error.h"

#include "core/backend.h"

namespace dkfac::cuda {
namespace {

[[noreturn]] void refuse(const char* operation) {
  throw DeviceError(
      detail::concat("[", operation, "] this build has no CUDA backend; use ", "Device::cpu()"));
}

}  // namespace

void dot(Context&, ConstTensorView, ConstTensorView, TensorView) { refuse("dot"); }
void sum(Context&, ConstTensorView, TensorView) { refuse("sum"); }
void max_abs(Context&, ConstTensorView, TensorView) { refuse("max_abs"); }
void col_sum(Context&, double, ConstTensorView, double, TensorView) { refuse("col_sum"); }
void count_nonfinite(Context&, ConstTensorView, TensorView) { refuse("count_nonfinite"); }

}  // namespace dkfac::cuda
