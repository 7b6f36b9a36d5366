#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "dkfac/core/error.h"
#include "dkfac/data/photo_data.h"

/// Generated photographs, without files.
namespace dkfac::testing {

/// Pictures of given sizes, all different; their labels go round through three classes.
class MadePhotos final : public data::PhotoSource {
 public:
  explicit MadePhotos(const std::vector<data::ImageSize>& sizes,
                      std::set<std::int64_t> damaged = {})
      : damaged_(std::move(damaged)) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      data::Image picture{sizes[i].height, sizes[i].width, {}};
      for (std::int64_t y = 0; y < picture.height; ++y)
        for (std::int64_t x = 0; x < picture.width; ++x)
          for (std::int64_t c = 0; c < 3; ++c)
            picture.pixels.push_back(static_cast<std::uint8_t>(
                (7 * y + 3 * x * (c + 1) + 41 * static_cast<std::int64_t>(i)) % 256));
      pictures_.push_back(std::move(picture));
      labels_.push_back(static_cast<std::int32_t>(i % 3));
    }
  }

  [[nodiscard]] const data::Image& picture(std::int64_t i) const {
    return pictures_.at(static_cast<std::size_t>(i));
  }
  [[nodiscard]] std::int64_t opened() const { return opened_; }

  [[nodiscard]] std::int64_t count() const override { return std::ssize(pictures_); }
  [[nodiscard]] const std::vector<std::string>& classes() const override { return classes_; }
  [[nodiscard]] const std::vector<std::int32_t>& labels() const override { return labels_; }
  [[nodiscard]] std::string name(std::int64_t i) const override {
    return "photo " + std::to_string(i);
  }
  [[nodiscard]] std::uint64_t fingerprint() const override { return pictures_.size(); }
  data::ImageSize open(std::int64_t i, data::PhotoScratch& scratch) const override {
    ++opened_;
    if (damaged_.contains(i)) throw DataError("damaged");
    scratch.number = i;
    return {picture(i).height, picture(i).width};
  }
  data::ImageView decode(const data::DecodeOptions&, data::PhotoScratch& scratch) const override {
    return picture(scratch.number);
  }

 private:
  const std::set<std::int64_t> damaged_;
  const std::vector<std::string> classes_{"a", "b", "c"};
  std::vector<data::Image> pictures_;
  std::vector<std::int32_t> labels_;
  mutable std::atomic<std::int64_t> opened_ = 0;
};

/// Upright, square and wide ones, mixed.
inline std::vector<data::ImageSize> mixed_sizes(std::int64_t count) {
  std::vector<data::ImageSize> sizes;
  for (std::int64_t i = 0; i < count; ++i) sizes.push_back({20 + 7 * i % 23, 20 + 11 * i % 29});
  return sizes;
}

/// For evaluation: batches of 16 by 16, or with that as their shorter side.
inline data::Dataset evaluated_photos(const std::shared_ptr<const data::PhotoSource>& source,
                                      bool rectangular) {
  data::PhotoOptions options;
  options.crop = data::PhotoCrop::centre;
  options.size = 16;
  options.resized = 18;
  options.rectangular = rectangular;
  options.workers = 2;
  options.bad_limit = 1;
  return data::photo_dataset("made", source, options);
}

}  // namespace dkfac::testing
