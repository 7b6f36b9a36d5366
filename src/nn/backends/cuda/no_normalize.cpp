#include "dkfac/core/error.h"

#include "nn/backends/backend_normalize.h"

namespace dkfac::nn::cuda {
namespace {

[[noreturn]] void absent() {
  throw DeviceError("[nn] this build has no CUDA; keep the network on the cpu");
}

}  // namespace

void batch_moments(Context&, const NormShape&, ConstTensorView, TensorView, TensorView,
                   TensorView) {
  absent();
}
void moments_from_sums(Context&, const NormShape&, ConstTensorView, ConstTensorView, TensorView,
                       TensorView, TensorView) {
  absent();
}
void finish_moments(Context&, const NormShape&, ConstTensorView, const NormChannels&,
                    const NormStatistics&) {
  absent();
}
void running_factors(Context&, const NormChannels&, TensorView, TensorView) { absent(); }
void normalize(Context&, const NormShape&, ConstTensorView, const Affine&, ConstTensorView,
               const Activation&, TensorView, TensorView) {
  absent();
}
void gradient_sums(Context&, const NormShape&, ConstTensorView, const Affine&, const OutputGrad&,
                   TensorView, TensorView, TensorView) {
  absent();
}
void train_moments(Context&, const NormShape&, ConstTensorView, const NormChannels&,
                   const NormStatistics&) {
  absent();
}
void sums_of_gradients(Context&, const NormShape&, ConstTensorView, ConstTensorView,
                       ConstTensorView, TensorView, TensorView) {
  absent();
}
void norm_gradients(Context&, const NormShape&, ConstTensorView, ConstTensorView, ConstTensorView,
                    ConstTensorView, TensorView, TensorView, const NormCoefficients&) {
  absent();
}
void normalize_backward(Context&, const NormShape&, ConstTensorView, const Affine&,
                        const OutputGrad&, const GradCoefficients&, TensorView) {
  absent();
}

}  // namespace dkfac::nn::cuda
