#include "nn/backends/cuda/normalize_channels.h"

#include "nn/backends/backend_normalize.h"
#include "nn/backends/cpu/parallel.h"
#include "nn/backends/dtype.h"

namespace dkfac::nn::cpu {

#include "nn/backends/channel_kernels.inc"

void train_moments(Context& ctx, const NormShape& s, ConstTensorView x,
                   const NormChannels& channels, const NormMoments& out) {
  Scratch scratch(ctx);
  const TensorView variance = scratch.take(Shape{s.groups, s.channels}, DType::f64);
  batch_moments(ctx, s, x, out.mean, out.rest, variance);
  finish_moments(ctx, s, variance, channels, out);
}

}  // namespace dkfac::nn::cpu
