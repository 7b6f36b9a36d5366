#include "core/shared/cuda/launch.cuh"
#include "nn/backends/backend_regularize.h"
#include "nn/backends/cuda/regularize_functors.h"

namespace dkfac::nn::cuda {

using dkfac::cuda::for_each;
using dkfac::cuda::for_each_2d;

void mixup_weights(Context& ctx, const MixupOptions& options, const SampleKey& key,
                   TensorView weights) {
  for_each(ctx.stream(), weights.numel(), DrawWeight{options, key, weights.data<double>()});
}

void mix_samples(Context& ctx, ConstTensorView weights, ConstTensorView fresh, TensorView mixed) {
  const std::int64_t n = fresh.dim(0), per_sample = fresh.numel() / n;
  visit_floating(fresh.dtype(), [&]<class T>(Type<T>) {
    const T* x = fresh.data<T>();
    T* y = mixed.data<T>();
    const bool aligned =
        are_aligned(x, y) && (n == 1 || per_sample % static_cast<std::int64_t>(kPack<T>) == 0);
    for_each_2d(ctx.stream(), n, packs_of<T>(per_sample),
                MixSamples<T>{weights.data<double>(), x, y, per_sample, aligned});
  });
}

void cut_holes(Context& ctx, const EraseOptions& options, const SampleKey& key, TensorView images) {
  const std::int64_t n = images.dim(0), h = images.dim(1), w = images.dim(2), c = images.dim(3);
  constexpr std::int64_t kWords = sizeof(Hole) / sizeof(double);
  static_assert(sizeof(Hole) == kWords * sizeof(double));
  Scratch scratch(ctx);
  auto* holes = static_cast<Hole*>(scratch.take(Shape{n, kWords}, DType::f64).raw());
  for_each(ctx.stream(), n, DrawHole{options, key, h, w, holes});
  visit_floating(images.dtype(), [&]<class T>(Type<T>) {
    for_each_2d(ctx.stream(), n * h, w * c, CutHoles<T>{holes, h, w, c, images.data<T>()});
  });
}

}  // namespace dkfac::nn::cuda
