#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

#include "dkfac/nn/erase.h"
#include "dkfac/nn/mixup.h"

#include "core/shared/cuda/device_code.h"
#include "core/shared/keyed_random.h"

/// Mixup weights and erasing holes of samples, for the host and for kernels. Generator: Random or
/// PhiloxStream.
namespace dkfac::nn {

template <class Generator>
[[nodiscard]] DKFAC_HD double normal_of(Generator& random) {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - random.uniform()));  // 1 - u is never 0.
  return radius * std::cos(2.0 * std::numbers::pi * random.uniform());
}

/// Draws the logarithm of a variate of the distribution Gamma(a, 1), a >= 1.
template <class Generator>
[[nodiscard]] DKFAC_HD double log_gamma_above_1(Generator& random, double a) {
  const double d = a - 1.0 / 3.0, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = normal_of(random), root = 1 + c * x;
    const double log_u = std::log(1 - random.uniform());
    if (root <= 0) continue;
    const double v = root * root * root;
    if (log_u < 0.5 * x * x + d * (1 - v + std::log(v))) return std::log(d * v);
  }
}

template <class Generator>
[[nodiscard]] DKFAC_HD double log_gamma_of(Generator& random, double a) {
  if (a >= 1) return log_gamma_above_1(random, a);
  // Gamma(a) is distributed as Gamma(a + 1) times U^(1/a).
  const double above = log_gamma_above_1(random, a + 1);
  return above + std::log(1 - random.uniform()) / a;
}

template <class Generator>
[[nodiscard]] DKFAC_HD double beta_of(Generator& random, double a, double b) {
  const double log_x = log_gamma_of(random, a);
  const double log_y = log_gamma_of(random, b);
  return 1 / (1 + std::exp(log_y - log_x));
}

/// Implements mixup_weight().
[[nodiscard]] DKFAC_HD inline double chosen_weight(const MixupOptions& options,
                                                   const SampleKey& key, std::int64_t i) {
  PhiloxStream random = keyed_stream(key, Draw::mixup, i);
  const double weight = beta_of(random, options.alpha, options.alpha);
  return options.favour_new && weight < 1 - weight ? 1 - weight : weight;
}

[[nodiscard]] DKFAC_HD inline double uniform_between(PhiloxStream& random, double lo, double hi) {
  return lo + (hi - lo) * random.uniform();
}

/// Side of a hole in whole pixels.
[[nodiscard]] DKFAC_HD inline std::int64_t pixels_of(double side, std::int64_t most) {
  const std::int64_t rounded = std::llround(side);
  if (rounded < 1) return 1;
  return rounded < most ? rounded : most;
}

/// Draws a position from 0 to `most`.
[[nodiscard]] DKFAC_HD inline std::int64_t place_of(PhiloxStream& random, std::int64_t most) {
  return static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(most) + 1));
}

/// Implements sample_hole().
[[nodiscard]] DKFAC_HD inline Hole chosen_hole(const EraseOptions& options, std::int64_t image_h,
                                               std::int64_t image_w, const SampleKey& key,
                                               std::int64_t i) {
  PhiloxStream random = keyed_stream(key, Draw::erasing, i);
  Hole hole;
  if (!(random.uniform() < options.probability)) return hole;
  const double area = uniform_between(random, options.min_area, options.max_area) *
                      static_cast<double>(image_h * image_w);
  const double aspect = uniform_between(random, options.min_aspect, options.max_aspect);
  const double height = std::sqrt(area * aspect), width = std::sqrt(area / aspect);
  const bool swapped = random.uniform() < 0.5;
  hole.height = pixels_of(swapped ? width : height, image_h);
  hole.width = pixels_of(swapped ? height : width, image_w);
  hole.y = place_of(random, image_h - hole.height);
  hole.x = place_of(random, image_w - hole.width);
  return hole;
}

}  // namespace dkfac::nn
