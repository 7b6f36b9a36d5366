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
void dot(Context&, ConstTensorView, ConstTensorView, TensorView) { refuse("dot"); }
void sum(Context&, ConstTensorView, TensorView) { refuse("sum"); }
void max_abs(Context&, ConstTensorView, TensorView) { refuse("max_abs"); }
void col_sum(Context&, double, ConstTensorView, double, TensorView) { refuse("col_sum"); }
void count_nonfinite(Context&, ConstTensorView, TensorView) { refuse("count_nonfinite"); }
void pack_lower(Context&, ConstTensorView, TensorView, TensorView) { refuse("pack_lower"); }
void unpack_lower(Context&, ConstTensorView, TensorView, ops::Mirror) { refuse("unpack_lower"); }
void packed_trace(Context&, ConstTensorView, std::int64_t, TensorView) { refuse("packed_trace"); }

}  // namespace dkfac::cuda
