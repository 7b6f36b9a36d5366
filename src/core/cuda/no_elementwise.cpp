#include "dkfac/core/error.h"

#include "core/backend.h"

namespace dkfac::cuda {
namespace {

[[noreturn]] void refuse_elementwise(const char* operation) {
  throw DeviceError(
      detail::concat("[", operation, "] this build has no CUDA backend; use ", "Device::cpu()"));
}

}  // namespace

void copy(Context&, ConstTensorView, TensorView) { refuse_elementwise("copy"); }
void fill(Context&, TensorView, double) { refuse_elementwise("fill"); }
void cast(Context&, ConstTensorView, TensorView, double) { refuse_elementwise("cast"); }
void axpby(Context&, double, ConstTensorView, double, TensorView) { refuse_elementwise("axpby"); }
void copy_checked(Context&, double, ConstTensorView, TensorView, TensorView) {
  refuse_elementwise("copy_checked");
}
void round_to(Context&, DType, double, ConstTensorView, TensorView, TensorView) {
  refuse_elementwise("round_to");
}
void dot(Context&, ConstTensorView, ConstTensorView, TensorView) { refuse_elementwise("dot"); }
void sum(Context&, ConstTensorView, TensorView) { refuse_elementwise("sum"); }
void max_abs(Context&, ConstTensorView, TensorView) { refuse_elementwise("max_abs"); }
void col_sum(Context&, double, ConstTensorView, double, TensorView) {
  refuse_elementwise("col_sum");
}
void count_nonfinite(Context&, ConstTensorView, TensorView) {
  refuse_elementwise("count_nonfinite");
}
void pack_lower(Context&, ConstTensorView, TensorView, TensorView) {
  refuse_elementwise("pack_lower");
}
void unpack_lower(Context&, ConstTensorView, TensorView, ops::Upper) {
  refuse_elementwise("unpack_lower");
}
void packed_trace(Context&, ConstTensorView, std::int64_t, TensorView) {
  refuse_elementwise("packed_trace");
}
void gather_rows(Context&, ConstTensorView, ConstTensorView, TensorView) {
  refuse_elementwise("gather_rows");
}
void scatter_add_rows(Context&, ConstTensorView, ConstTensorView, TensorView) {
  refuse_elementwise("scatter_add_rows");
}

}  // namespace dkfac::cuda
