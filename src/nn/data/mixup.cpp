#include "dkfac/nn/mixup.h"

#include <algorithm>
#include <cmath>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"

#include "nn/cpu/parallel.h"
#include "nn/cpu/storage.h"
#include "nn/keyed_random.h"
#include "nn/workspace.h"

namespace dkfac::nn {
namespace {

/// The logarithm of a number of the distribution Gamma(a, 1).
double log_gamma_sample(Random& random, double a) {
  // Gamma(a) is Gamma(a + 1) times U^(1/a).
  if (a < 1) return log_gamma_sample(random, a + 1) + std::log(1 - random.uniform()) / a;
  const double d = a - 1.0 / 3.0, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = random.normal(), root = 1 + c * x;
    const double log_u = std::log(1 - random.uniform());
    if (root <= 0) continue;
    const double v = root * root * root;
    if (log_u < 0.5 * x * x + d * (1 - v + std::log(v))) return std::log(d * v);
  }
}

/// mixed = weight * fresh + (1 - weight) * mixed, with a weight per sample.
template <class T>
void mix(const double* weights, std::int64_t samples, std::int64_t per_sample, const T* fresh,
         T* mixed) {
  using C = cpu::Computed<T>;
  cpu::parallel_for(samples, cpu::grain_of(per_sample), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto w = static_cast<C>(weights[i]), rest = C{1} - w;
      const T* x = fresh + i * per_sample;
      T* y = mixed + i * per_sample;
      for (std::int64_t k = 0; k < per_sample; ++k) {
        y[k] = cpu::store<T>(w * cpu::load(x[k]) + rest * cpu::load(y[k]));
      }
    }
  });
}

void mix(const double* weights, ConstTensorView fresh, TensorView mixed) {
  const std::int64_t samples = fresh.dim(0);
  if (fresh.numel() == 0) return;
  cpu::for_storage(fresh.dtype(), [&](auto t) {
    using T = decltype(t);
    mix(weights, samples, fresh.numel() / samples, fresh.data<T>(), mixed.data<T>());
  });
}

void check_batch(const char* what, ConstTensorView x) {
  DKFAC_CHECK(x.ndim() >= 2 && x.is_contiguous() && !x.device().is_cuda(), "[running_mixup] the ",
              what, " are ", x.shape(), " on ", x.device(),
              "; they must be [n, ...] without gaps, in host memory");
}

bool alike(ConstTensorView a, ConstTensorView b) {
  return !a.empty() && a.shape() == b.shape() && a.dtype() == b.dtype();
}

}  // namespace

double sample_beta(Random& random, double a, double b) {
  DKFAC_CHECK(a > 0 && b > 0 && std::isfinite(a) && std::isfinite(b), "[sample_beta] a is ", a,
              " and b ", b, "; both must be > 0");
  const double log_x = log_gamma_sample(random, a);
  const double log_y = log_gamma_sample(random, b);
  return 1 / (1 + std::exp(log_y - log_x));
}

void MixupOptions::validate() const {
  DKFAC_CHECK(alpha >= 0 && std::isfinite(alpha), "[mixup] alpha is ", alpha,
              "; it must be >= 0, where 0 is off");
}

double mixup_weight(const MixupOptions& options, SampleKey key, std::int64_t i) {
  Random random = keyed_random(key, Draw::mixup, i);
  const double weight = sample_beta(random, options.alpha, options.alpha);
  return options.favour_new ? std::max(weight, 1 - weight) : weight;
}

void VirtualBatch::prepare(Context& ctx, const Shape& images_shape, DType images_dtype,
                           const Shape& targets_shape, DType targets_dtype) {
  images = view_in(ctx, image_memory, images_shape, images_dtype);
  targets = view_in(ctx, target_memory, targets_shape, targets_dtype);
}

void running_mixup(Context& ctx, const MixupOptions& options, SampleKey key,
                   std::int64_t global_batch, ConstTensorView images, ConstTensorView targets,
                   VirtualBatch& batch) {
  options.validate();
  DKFAC_CHECK(options.any(), "[running_mixup] alpha is 0; leave the batch as it is");
  check_key("running_mixup", key);
  check_batch("images", images);
  check_batch("targets", targets);
  const std::int64_t n = images.dim(0);
  DKFAC_CHECK(targets.dim(0) == n && global_batch > 0 && key.first + n <= global_batch,
              "[running_mixup] there are ", n, " images from place ", key.first,
              " of a global batch of ", global_batch, ", and ", targets.dim(0),
              " targets; there must be one per image, and the images lie inside the batch");
  const bool goes_on = batch.global_batch == global_batch && batch.first == key.first &&
                       alike(batch.images, images) && alike(batch.targets, targets);
  if (!goes_on) {
    batch.prepare(ctx, images.shape(), images.dtype(), targets.shape(), targets.dtype());
    ops::copy(ctx, images, batch.images);
    ops::copy(ctx, targets, batch.targets);
    batch.global_batch = global_batch;
    batch.first = key.first;
    return;
  }
  Scratch scratch(ctx);
  double* weights = scratch.take(Shape{n}, DType::f64).data<double>();
  for (std::int64_t i = 0; i < n; ++i) weights[i] = mixup_weight(options, key, i);
  mix(weights, images, batch.images);
  mix(weights, targets, batch.targets);
}

}  // namespace dkfac::nn
