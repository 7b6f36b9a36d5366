#include "dkfac/core/error.h"

#include "nn/backends/backend_regularize.h"

namespace dkfac::nn::cuda {
namespace {

[[noreturn]] void absent_regularize() {
  throw DeviceError("[regularize] this build has no CUDA; keep the network on the cpu");
}

}  // namespace

void mixup_weights(Context&, const MixupOptions&, const SampleKey&, TensorView) {
  absent_regularize();
}
void mix_samples(Context&, ConstTensorView, ConstTensorView, TensorView) { absent_regularize(); }
void cut_holes(Context&, const EraseOptions&, const SampleKey&, TensorView) { absent_regularize(); }

}  // namespace dkfac::nn::cuda
