#include "dkfac/core/error.h"

#include "nn/backends/backend_regularize.h"

namespace dkfac::nn::cuda {
namespace {

[[noreturn]] void absent() {
  throw DeviceError("[regularize] this build has no CUDA; keep the network on the cpu");
}

}  // namespace

void mixup_weights(Context&, const MixupOptions&, const SampleKey&, TensorView) { absent(); }
void mix_samples(Context&, ConstTensorView, ConstTensorView, TensorView) { absent(); }
void cut_holes(Context&, const EraseOptions&, const SampleKey&, TensorView) { absent(); }

}  // namespace dkfac::nn::cuda
