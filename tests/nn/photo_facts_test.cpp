// Sizes and colours of photographs, found out once.

#include "dkfac/nn/photo_facts.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <unistd.h>

#include <gtest/gtest.h>

#include "support/made_photos.h"

namespace dkfac::testing {
namespace {

namespace fs = std::filesystem;

/// A file of one test.
class PhotoFacts : public ::testing::Test {
 protected:
  ~PhotoFacts() override {
    std::error_code ignored;
    fs::remove(kept, ignored);
  }
  const fs::path kept =
      fs::temp_directory_path() / ("dkfac_photo_facts" + std::to_string(::getpid()));
};

std::vector<std::int64_t> all_of(const MadePhotos& photos) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(photos.count()));
  std::iota(numbers.begin(), numbers.end(), std::int64_t{0});
  return numbers;
}

std::vector<std::int64_t> sides(const std::vector<nn::ImageSize>& sizes) {
  std::vector<std::int64_t> out;
  for (const nn::ImageSize& size : sizes) {
    out.push_back(size.height);
    out.push_back(size.width);
  }
  return out;
}

TEST_F(PhotoFacts, SizesAreThoseOfThePictures) {
  std::vector<nn::ImageSize> sizes = mixed_sizes(20);
  const MadePhotos photos(sizes, {4});
  sizes[4] = {1, 1};
  for (const int workers : {1, 4})
    EXPECT_EQ(sides(nn::find_photo_sizes(photos, all_of(photos), workers)), sides(sizes));
  const std::vector<std::int64_t> some{7, 4, 19};
  EXPECT_EQ(sides(nn::find_photo_sizes(photos, some)), sides({sizes[7], sizes[4], sizes[19]}));
}

TEST_F(PhotoFacts, AreLookedForOnce) {
  const MadePhotos photos(mixed_sizes(20)), others(mixed_sizes(21));
  const auto sizes = sides(nn::find_photo_sizes(photos, all_of(photos), 1, kept));
  EXPECT_EQ(photos.opened(), 20);
  EXPECT_EQ(sides(nn::find_photo_sizes(photos, all_of(photos), 1, kept)), sizes);
  EXPECT_EQ(photos.opened(), 20);
  // Of other photographs, or of a part of them, they are looked for again.
  const std::vector<std::int64_t> some{3, 5};
  EXPECT_EQ(nn::find_photo_sizes(photos, some, 1, kept).size(), 2U);
  EXPECT_EQ(photos.opened(), 22);
  (void)nn::find_photo_sizes(others, all_of(others), 1, kept);
  EXPECT_EQ(others.opened(), 21);
}

TEST_F(PhotoFacts, ADamagedFileIsReplaced) {
  const MadePhotos photos(mixed_sizes(20));
  const auto sizes = sides(nn::find_photo_sizes(photos, all_of(photos), 1, kept));
  const auto length = fs::file_size(kept);
  for (const auto keep : {length / 2, length - 1}) {
    fs::resize_file(kept, keep);
    EXPECT_EQ(sides(nn::find_photo_sizes(photos, all_of(photos), 1, kept)), sizes);
    EXPECT_EQ(fs::file_size(kept), length);
  }
  {
    std::fstream file(kept, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(40);
    file.put('\x7F');
  }
  EXPECT_EQ(sides(nn::find_photo_sizes(photos, all_of(photos), 1, kept)), sizes);
  EXPECT_EQ(photos.opened(), 80);
}

TEST_F(PhotoFacts, ColoursAreMeanAndDeviationOverTheCentreCrops) {
  const MadePhotos photos(mixed_sizes(12), {5});
  std::vector<double> sum(3), squares(3);
  double pixels = 0;
  for (std::int64_t i = 0; i < photos.count(); ++i) {
    if (i == 5) continue;
    const nn::Image& picture = photos.picture(i);
    const nn::PhotoView view = nn::centre_crop({picture.height, picture.width}, 256, 224, 224);
    std::vector<std::uint8_t> image(224 * 224 * 3), scratch;
    nn::resize_bilinear(picture, view.from, view.height, view.width, view.window, image.data(),
                        scratch);
    pixels += 224 * 224;
    for (std::size_t k = 0; k < image.size(); ++k) {
      sum[k % 3] += image[k] / 255.0;
      squares[k % 3] += image[k] / 255.0 * (image[k] / 255.0);
    }
  }
  const nn::Normalization one = nn::find_photo_normalization(photos, 1);
  for (std::size_t c = 0; c < 3; ++c) {
    // c * n * eps with c = 2: sums of n terms below 1 on this side, exact ones on the other.
    const double bound = 2 * pixels * std::numeric_limits<double>::epsilon();
    const double mean = sum[c] / pixels;
    EXPECT_NEAR(one.mean[c], mean, bound);
    EXPECT_NEAR(one.stddev[c] * one.stddev[c], squares[c] / pixels - mean * mean, 2 * bound);
  }
  EXPECT_GT(std::abs(one.mean[0] - nn::imagenet_normalization().mean[0]), 1e-3);
  const nn::Normalization three = nn::find_photo_normalization(photos, 3, kept);
  EXPECT_EQ(three.mean, one.mean);
  EXPECT_EQ(three.stddev, one.stddev);
  const std::int64_t before = photos.opened();
  const nn::Normalization again = nn::find_photo_normalization(photos, 3, kept);
  EXPECT_EQ(again.mean, one.mean);
  EXPECT_EQ(again.stddev, one.stddev);
  EXPECT_EQ(photos.opened(), before);
}

TEST_F(PhotoFacts, WithoutAGoodPhotographThereAreNoColours) {
  const MadePhotos photos(mixed_sizes(2), {0, 1});
  EXPECT_THROW((void)nn::find_photo_normalization(photos), DataError);
}

}  // namespace
}  // namespace dkfac::testing
