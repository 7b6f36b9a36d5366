#include <algorithm>

#include "nn/backends/backend_regularize.h"
#include "nn/backends/cpu/parallel.h"
#include "nn/backends/cpu/storage.h"
#include "nn/backends/sample_choice.h"

namespace dkfac::nn::cpu {
namespace {

template <class T>
void mix(const double* weights, std::int64_t samples, std::int64_t per_sample, const T* fresh,
         T* mixed) {
  using C = Computed<T>;
  each(samples, per_sample, [&](std::int64_t i) {
    const auto w = static_cast<C>(weights[i]), rest = C{1} - w;
    const T* x = fresh + i * per_sample;
    T* y = mixed + i * per_sample;
    for (std::int64_t k = 0; k < per_sample; ++k)
      y[k] = store<T>(w * load(x[k]) + rest * load(y[k]));
  });
}

template <class T>
void erase(const Hole& hole, const Shape& image, T* x) {
  const std::int64_t row = image[1] * image[2];
  for (std::int64_t y = hole.y; y < hole.y + hole.height; ++y) {
    std::fill_n(x + y * row + hole.x * image[2], hole.width * image[2], T{});
  }
}

}  // namespace

void mixup_weights(Context&, const MixupOptions& options, const SampleKey& key,
                   TensorView weights) {
  double* to = weights.data<double>();
  for (std::int64_t i = 0; i < weights.numel(); ++i) to[i] = chosen_weight(options, key, i);
}

void mix_samples(Context&, ConstTensorView weights, ConstTensorView fresh, TensorView mixed) {
  const std::int64_t samples = fresh.dim(0);
  visit_floating(fresh.dtype(), [&]<class T>(Type<T>) {
    mix(weights.data<double>(), samples, fresh.numel() / samples, fresh.data<T>(), mixed.data<T>());
  });
}

void cut_holes(Context&, const EraseOptions& options, const SampleKey& key, TensorView images) {
  const Shape image{images.dim(1), images.dim(2), images.dim(3)};
  visit_floating(images.dtype(), [&]<class T>(Type<T>) {
    auto* x = images.data<T>();
    each(images.dim(0), image.numel(), [&](std::int64_t i) {
      erase(chosen_hole(options, image[0], image[1], key, i), image, x + i * image.numel());
    });
  });
}

}  // namespace dkfac::nn::cpu
