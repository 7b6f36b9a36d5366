#include "dkfac/core/error.h"

#include "nn/backends/backend_elementwise.h"

namespace dkfac::nn::cuda {
namespace {

[[noreturn]] void absent() {
  throw DeviceError("[nn] this build has no CUDA; keep the network on the cpu");
}

}  // namespace

void repeat_row(Context&, ConstTensorView, TensorView) { absent(); }
void sum_rows(Context&, ConstTensorView, TensorView) { absent(); }
void add(Context&, ConstTensorView, ConstTensorView, TensorView) { absent(); }
void scale(Context&, ConstTensorView, double, TensorView) { absent(); }
void activate(Context&, const Activation&, ConstTensorView, TensorView) { absent(); }
void activate_backward(Context&, const Activation&, ConstTensorView, ConstTensorView, TensorView) {
  absent();
}
void mix(Context&, double, ConstTensorView, TensorView) { absent(); }
void exchange(Context&, TensorView, TensorView) { absent(); }
void pad_channels(Context&, const PadShape&, ConstTensorView, TensorView) { absent(); }
void pad_channels_backward(Context&, const PadShape&, ConstTensorView, TensorView) { absent(); }
void mirror(Context&, ConstTensorView, TensorView) { absent(); }

}  // namespace dkfac::nn::cuda
