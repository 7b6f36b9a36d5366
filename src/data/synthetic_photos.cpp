#include "data/synthetic_photos.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "dkfac/core/error.h"
#include "dkfac/data/photo_data.h"

#include "data/photo_splits.h"

namespace dkfac::data {
namespace {

constexpr std::int64_t kTrainPictures = 256, kTestPictures = 64;
constexpr std::int64_t kShownClasses = 10;  // Generating patterns of every class would be slow.

class SyntheticPhotos final : public PhotoSource {
 public:
  /// Photograph i is picture first + i mod `distinct`.
  SyntheticPhotos(std::shared_ptr<const Dataset> pictures, std::int64_t first,
                  std::int64_t distinct, std::int64_t count, std::int64_t classes)
      : pictures_(std::move(pictures)), first_(first), distinct_(distinct), count_(count) {
    for (std::int64_t k = 0; k < classes; ++k) classes_.push_back(detail::concat("class ", k));
    for (std::int64_t i = 0; i < count; ++i)
      labels_.push_back(pictures_->labels[static_cast<std::size_t>(picture(i))]);
  }

  [[nodiscard]] std::int64_t count() const override { return count_; }
  [[nodiscard]] const std::vector<std::string>& classes() const override { return classes_; }
  [[nodiscard]] const std::vector<std::int32_t>& labels() const override { return labels_; }
  [[nodiscard]] std::string name(std::int64_t i) const override {
    return detail::concat("synthetic picture ", picture(i));
  }
  [[nodiscard]] std::uint64_t fingerprint() const override { return data::fingerprint(*pictures_); }

  ImageSize open(std::int64_t i, PhotoScratch& scratch) const override {
    scratch.number = i;
    return {pictures_->height, pictures_->width};
  }
  ImageView decode(const DecodeOptions&, PhotoScratch& scratch) const override {
    return {pictures_->height, pictures_->width,
            pictures_->pixels.data() + picture(scratch.number) * pictures_->image_size()};
  }

 private:
  [[nodiscard]] std::int64_t picture(std::int64_t i) const { return first_ + i % distinct_; }

  const std::shared_ptr<const Dataset> pictures_;
  const std::int64_t first_, distinct_, count_;
  std::vector<std::string> classes_;
  std::vector<std::int32_t> labels_;
};

}  // namespace

DataSplits make_synthetic_photos(const DataSource& source) {
  DKFAC_CHECK(source.synthetic_train > 0 && source.synthetic_test > 0,
              "[load_data] synthetic_train is ", source.synthetic_train, " and synthetic_test ",
              source.synthetic_test, "; both must be > 0");
  const std::int64_t side = source.synthetic_image[0], classes = source.synthetic_classes;
  const auto pictures = std::make_shared<const Dataset>(
      synthetic_images(kTrainPictures + kTestPictures, {side, side, 3},
                       std::min(classes, kShownClasses), source.seed));
  const auto split = [&](std::int64_t first, std::int64_t distinct, std::int64_t count) {
    return std::make_shared<SyntheticPhotos>(pictures, first, distinct, count, classes);
  };
  return photo_splits(
      source, {split(0, kTrainPictures, source.synthetic_train), source.name},
      {split(kTrainPictures, kTestPictures, source.synthetic_test), source.name + " test"});
}

double synthetic_photo_bytes(const DataSource& source) {
  const auto side = static_cast<double>(source.synthetic_image[0]);
  const auto classes = static_cast<double>(std::min(source.synthetic_classes, kShownClasses));
  return synthetic_image_bytes(kTrainPictures + kTestPictures, 3 * side * side, classes);
}

}  // namespace dkfac::data
