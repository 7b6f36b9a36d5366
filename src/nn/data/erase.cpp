#include "dkfac/nn/erase.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "dkfac/core/error.h"
#include "dkfac/core/random.h"

#include "nn/cpu/parallel.h"
#include "nn/cpu/storage.h"
#include "nn/keyed_random.h"

namespace dkfac::nn {
namespace {

double between(Random& random, double lo, double hi) { return lo + (hi - lo) * random.uniform(); }

std::int64_t pixels(double side, std::int64_t most) {
  return std::clamp<std::int64_t>(std::llround(side), 1, most);
}

/// A place from 0 to `most`.
std::int64_t place(Random& random, std::int64_t most) {
  return static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(most) + 1));
}

template <class T>
void erase(const Hole& hole, const Shape& image, T* x) {
  const std::int64_t row = image[1] * image[2];
  for (std::int64_t y = hole.y; y < hole.y + hole.height; ++y) {
    std::fill_n(x + y * row + hole.x * image[2], hole.width * image[2], T{});
  }
}

}  // namespace

void EraseOptions::validate() const {
  DKFAC_CHECK(probability >= 0 && probability <= 1, "[erase] probability is ", probability,
              "; it must be in [0, 1]");
  DKFAC_CHECK(min_area > 0 && min_area <= max_area && max_area <= 1, "[erase] areas are from ",
              min_area, " to ", max_area, "; they must be in (0, 1], in this order");
  DKFAC_CHECK(min_aspect > 0 && min_aspect <= max_aspect && std::isfinite(max_aspect),
              "[erase] aspects are from ", min_aspect, " to ", max_aspect,
              "; they must be > 0, in this order");
}

Hole sample_hole(const EraseOptions& options, const Shape& image, SampleKey key, std::int64_t i) {
  Random random = keyed_random(key, Draw::erasing, i);
  if (!(random.uniform() < options.probability)) return {};
  const std::int64_t h = image[0], w = image[1];
  const double area =
      between(random, options.min_area, options.max_area) * static_cast<double>(h * w);
  const double aspect = between(random, options.min_aspect, options.max_aspect);
  double height = std::sqrt(area * aspect), width = std::sqrt(area / aspect);
  if (random.uniform() < 0.5) std::swap(height, width);
  Hole hole;
  hole.height = pixels(height, h);
  hole.width = pixels(width, w);
  hole.y = place(random, h - hole.height);
  hole.x = place(random, w - hole.width);
  return hole;
}

void erase_holes(const EraseOptions& options, SampleKey key, TensorView images) {
  options.validate();
  check_key("erase", key);
  DKFAC_CHECK(images.ndim() == 4 && images.is_contiguous() && !images.device().is_cuda(),
              "[erase] the images are ", images.shape(), " on ", images.device(),
              "; they must be [n, h, w, c] without gaps, in host memory");
  if (images.numel() == 0) return;
  const Shape image{images.dim(1), images.dim(2), images.dim(3)};
  cpu::for_storage(images.dtype(), [&](auto t) {
    using T = decltype(t);
    T* x = images.data<T>();
    cpu::parallel_for(images.dim(0), cpu::grain_of(image.numel()),
                      [&](std::int64_t begin, std::int64_t end) {
                        for (std::int64_t i = begin; i < end; ++i) {
                          erase(sample_hole(options, image, key, i), image, x + i * image.numel());
                        }
                      });
  });
}

}  // namespace dkfac::nn
