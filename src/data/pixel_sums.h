#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "dkfac/core/error.h"
#include "dkfac/data/photo_data.h"

#include "data/worker_pool.h"

/// Sums over images. They are integers and exact, so that neither order nor machine matters.
namespace dkfac::data {

/// Returns the sums over `count` photographs as images of options.shape(), the i-th of which is
/// number_of(i), without damaged ones; `none` are the sums of no image.
template <class Sums, class NumberOf>
Sums sum_photos(const PhotoSource& source, std::int64_t count, NumberOf number_of,
                const PhotoOptions& options, int workers, const Sums& none) {
  struct Worker {
    PhotoScratch scratch;
    std::vector<std::uint8_t> image;
    Sums sums;
  };
  const auto elements = static_cast<std::size_t>(options.size * options.size * 3);
  WorkerPool pool(photo_workers(workers));
  std::vector<Worker> all(static_cast<std::size_t>(pool.workers()),
                          {{}, std::vector<std::uint8_t>(elements), none});
  pool.run(count, [&](int number, std::int64_t i) {
    Worker& worker = all[static_cast<std::size_t>(number)];
    try {
      make_image(source, number_of(i), options, options.shape(), {}, worker.image.data(),
                 worker.scratch);
    } catch (const DataError&) {
      return;
    }
    worker.sums.add(worker.image);
  });
  for (std::size_t i = 1; i < all.size(); ++i) all.front().sums.add(all[i].sums);
  return std::move(all.front().sums);
}

/// Sums over the pixels of each channel.
class Colours {
 public:
  explicit Colours(std::size_t channels) : sum_(channels, 0), squares_(channels, 0) {}

  [[nodiscard]] std::uint64_t pixels() const { return pixels_; }
  void add(std::span<const std::uint8_t> image) {
    const std::size_t channels = sum_.size();
    pixels_ += image.size() / channels;
    for (std::size_t i = 0; i + channels <= image.size(); i += channels) {
      for (std::size_t c = 0; c < channels; ++c) {
        const std::uint64_t p = image[i + c];
        sum_[c] += p;
        squares_[c] += p * p;
      }
    }
  }
  void add(const Colours& other) {
    pixels_ += other.pixels_;
    for (std::size_t c = 0; c < sum_.size(); ++c) {
      sum_[c] += other.sum_[c];
      squares_[c] += other.squares_[c];
    }
  }
  /// Returns mean and deviation of pixels / 255; the deviation of a constant channel is 1.
  [[nodiscard]] Normalization normalization() const {
    Normalization out;
    const auto n = static_cast<double>(pixels_);
    for (std::size_t c = 0; c < sum_.size(); ++c) {
      const double mean = static_cast<double>(sum_[c]) / n;
      const double variance = static_cast<double>(squares_[c]) / n - mean * mean;
      out.mean.push_back(mean / 255);
      out.stddev.push_back(variance > 0 ? std::sqrt(variance) / 255 : 1);
    }
    return out;
  }

 private:
  std::uint64_t pixels_ = 0;
  std::vector<std::uint64_t> sum_, squares_;
};

}  // namespace dkfac::data
