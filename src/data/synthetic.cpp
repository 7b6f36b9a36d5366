#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "dkfac/core/error.h"
#include "dkfac/core/random.h"
#include "dkfac/data/dataset.h"

#include "core/shared/wait_watch.h"

namespace dkfac::data {
namespace {

// Streams of Random: one for the patterns of each class, one for each sample.
constexpr std::uint64_t kPatternStream = std::uint64_t{1} << 62;
constexpr std::uint64_t kSampleStream = std::uint64_t{1} << 61;

constexpr double kShared = 0.035;  ///< Amplitude of the pattern of constant sign.
constexpr double kSigned = 0.16;   ///< Amplitude of the pattern of random sign.
constexpr double kNoise = 0.25;

/// Returns a smooth random pattern of mean square about 1: a few waves of low frequency.
std::vector<double> smooth_pattern(const Shape& image, Random& random) {
  constexpr int kWaves = 4;
  constexpr double kMaxPeriods = 3.0;
  const std::int64_t h = image[0], w = image[1], c = image[2];
  std::vector<double> out(static_cast<std::size_t>(image.numel()), 0.0);
  for (int wave = 0; wave < kWaves; ++wave) {
    const double fy = kMaxPeriods * (2.0 * random.uniform() - 1.0);
    const double fx = kMaxPeriods * (2.0 * random.uniform() - 1.0);
    std::size_t i = 0;
    std::vector<double> phases(static_cast<std::size_t>(c));
    for (double& phase : phases) phase = random.uniform();
    for (std::int64_t y = 0; y < h; ++y) {
      for (std::int64_t x = 0; x < w; ++x) {
        const double turns = fy * static_cast<double>(y) / static_cast<double>(h) +
                             fx * static_cast<double>(x) / static_cast<double>(w);
        for (const double phase : phases) {
          out[i++] += std::cos(2.0 * std::numbers::pi * (turns + phase)) * std::sqrt(2.0 / kWaves);
        }
      }
    }
  }
  return out;
}

struct ClassPatterns {
  std::vector<double> always, flipping;
};

std::uint8_t to_pixel(double value) {
  return static_cast<std::uint8_t>(std::lround(std::clamp(value, 0.0, 1.0) * 255.0));
}

}  // namespace

Dataset synthetic_images(std::int64_t count, Shape image, std::int64_t classes,
                         std::uint64_t seed) {
  DKFAC_CHECK(count > 0, "[synthetic_images] count is ", count, "; it must be > 0");
  DKFAC_CHECK(image.ndim() == 3 && image.numel() > 0, "[synthetic_images] image is ", image,
              "; it must be [height, width, channels], all > 0");
  DKFAC_CHECK(classes > 0 && classes <= std::numeric_limits<std::int32_t>::max(),
              "[synthetic_images] classes is ", classes, "; it must be > 0");
  std::vector<ClassPatterns> patterns(static_cast<std::size_t>(classes));
  for (std::size_t k = 0; k < patterns.size(); ++k) {
    Random random(seed, kPatternStream + k);
    patterns[k].always = smooth_pattern(image, random);
    patterns[k].flipping = smooth_pattern(image, random);
  }
  Dataset out;
  out.name = "synthetic";
  out.count = count;
  out.height = image[0];
  out.width = image[1];
  out.channels = image[2];
  out.classes = classes;
  out.pixels.reserve(static_cast<std::size_t>(count * image.numel()));
  out.labels.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    poll_wait_watches();
    Random random(seed, kSampleStream + static_cast<std::uint64_t>(i));
    const std::uint64_t label = random.below(static_cast<std::uint64_t>(classes));
    const double sign = random.below(2) == 0 ? -kSigned : kSigned;
    const ClassPatterns& p = patterns[label];
    out.labels.push_back(static_cast<std::int32_t>(label));
    for (std::size_t j = 0; j < p.always.size(); ++j) {
      out.pixels.push_back(
          to_pixel(0.5 + kShared * p.always[j] + sign * p.flipping[j] + kNoise * random.normal()));
    }
  }
  return out;
}

}  // namespace dkfac::data
