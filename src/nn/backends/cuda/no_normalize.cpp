#include "dkfac/core/error.h"

#include "nn/backends/backend_normalize.h"

namespace dkfac::nn::cuda {
namespace {

[[noreturn]] void absent_normalize() {
  throw DeviceError("[nn] this build has no CUDA; keep the network on the cpu");
}

}  // namespace

void batch_moments(Context&, const NormShape&, ConstTensorView, TensorView, TensorView,
                   TensorView) {
  absent_normalize();
}
void moments_from_sums(Context&, const NormShape&, ConstTensorView, ConstTensorView, TensorView,
                       TensorView, TensorView) {
  absent_normalize();
}
void finish_moments(Context&, const NormShape&, ConstTensorView, const NormChannels&,
                    const NormMoments&) {
  absent_normalize();
}
void running_factors(Context&, const NormChannels&, TensorView, TensorView) { absent_normalize(); }
void normalize(Context&, const NormShape&, ConstTensorView, const Affine&, ConstTensorView,
               const Activation&, TensorView, TensorView) {
  absent_normalize();
}
void gradient_sums(Context&, const NormShape&, ConstTensorView, const Affine&, const OutputGrad&,
                   TensorView, TensorView, TensorView) {
  absent_normalize();
}
void train_moments(Context&, const NormShape&, ConstTensorView, const NormChannels&,
                   const NormMoments&) {
  absent_normalize();
}
void sums_of_gradients(Context&, const NormShape&, ConstTensorView, ConstTensorView,
                       ConstTensorView, TensorView, TensorView) {
  absent_normalize();
}
void norm_gradients(Context&, const NormShape&, ConstTensorView, ConstTensorView, ConstTensorView,
                    ConstTensorView, TensorView, TensorView, const NormCoefficients&) {
  absent_normalize();
}
void normalize_backward(Context&, const NormShape&, ConstTensorView, const Affine&,
                        const OutputGrad&, const GradCoefficients&, TensorView) {
  absent_normalize();
}
void normalize_rows(Context&, double, ConstTensorView, ConstTensorView, ConstTensorView, TensorView,
                    TensorView, TensorView) {
  absent_normalize();
}
void row_norm_gradients(Context&, ConstTensorView, ConstTensorView, ConstTensorView,
                        ConstTensorView, TensorView, TensorView) {
  absent_normalize();
}
void normalize_rows_backward(Context&, ConstTensorView, ConstTensorView, ConstTensorView,
                             ConstTensorView, ConstTensorView, TensorView) {
  absent_normalize();
}

}  // namespace dkfac::nn::cuda
