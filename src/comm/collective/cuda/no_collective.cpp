#include "dkfac/core/error.h"

#include "comm/collective/backend_collective.h"

namespace dkfac::comm::cuda {
namespace {

[[noreturn]] void refuse_work(const char* operation) {
  throw DeviceError(
      detail::concat("[", operation, "] this build has no CUDA backend; use Device::cpu()"));
}

}  // namespace

void raise_flag(Context&, ConstTensorView, TensorView) { refuse_work("flags"); }
void raise_nonfinite(Context&, ConstTensorView, TensorView) { refuse_work("flags"); }
void count_past(Context&, double, double, ConstTensorView, TensorView) { refuse_work("reduce"); }

}  // namespace dkfac::comm::cuda
