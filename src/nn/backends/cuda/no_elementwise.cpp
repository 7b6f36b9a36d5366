#include "dkfac/core/error.h"

#include "nn/backends/backend_elementwise.h"

namespace dkfac::nn::cuda {
namespace {

[[noreturn]] void absent_elementwise() {
  throw DeviceError("[nn] this build has no CUDA; keep the network on the cpu");
}

}  // namespace

void repeat_row(Context&, ConstTensorView, TensorView) { absent_elementwise(); }
void sum_rows(Context&, ConstTensorView, TensorView) { absent_elementwise(); }
void add(Context&, ConstTensorView, ConstTensorView, TensorView) { absent_elementwise(); }
void scale(Context&, ConstTensorView, double, TensorView) { absent_elementwise(); }
void activate(Context&, const Activation&, ConstTensorView, TensorView) { absent_elementwise(); }
void activate_backward(Context&, const Activation&, ConstTensorView, ConstTensorView, TensorView) {
  absent_elementwise();
}
void mix(Context&, double, ConstTensorView, TensorView) { absent_elementwise(); }
void exchange(Context&, TensorView, TensorView) { absent_elementwise(); }
void pad_channels(Context&, const PadShape&, ConstTensorView, TensorView) { absent_elementwise(); }
void pad_channels_backward(Context&, const PadShape&, ConstTensorView, TensorView) {
  absent_elementwise();
}
void flip_horizontal(Context&, ConstTensorView, TensorView) { absent_elementwise(); }

}  // namespace dkfac::nn::cuda
