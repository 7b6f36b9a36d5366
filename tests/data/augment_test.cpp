// Choices of augmentation: pure, uniform, grouped as promised; and what they do to an image.

#include "dkfac/data/augment.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

#include "data/image_writer.h"

namespace dkfac::data {
namespace {

const Shape kImage{32, 32, 3};
constexpr AugmentOptions kAll{.pad = 4, .flip = true, .cutout = 8};

TEST(SampleAugmentation, IsAFunctionOfSeedEpochAndSample) {
  const auto at = [](std::uint64_t seed, std::int64_t epoch, std::int64_t sample) {
    return sample_augmentation(kAll, kImage, seed, epoch, sample);
  };
  int other_seed = 0, other_epoch = 0, other_sample = 0;
  for (std::int64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(at(5, 2, i), at(5, 2, i));
    other_seed += at(5, 2, i) != at(6, 2, i);
    other_epoch += at(5, 2, i) != at(5, 3, i);
    other_sample += at(5, 2, i) != at(5, 2, i + 1);
  }
  // Two of 81 * 2 * 625 choices are equal once in 100,000 times.
  EXPECT_EQ(other_seed, 100);
  EXPECT_EQ(other_epoch, 100);
  EXPECT_EQ(other_sample, 100);
}

/// Chi-square statistic of counts that should be equal.
double chi_square(const std::vector<int>& counts) {
  const double expected =
      std::accumulate(counts.begin(), counts.end(), 0.0) / static_cast<double>(counts.size());
  double sum = 0;
  for (const int n : counts) sum += (n - expected) * (n - expected) / expected;
  return sum;
}

/// Mean k - 1, variance 2 (k - 1): five standard deviations.
double chi_square_limit(std::size_t k) {
  const auto freedom = static_cast<double>(k - 1);
  return freedom + 5 * std::sqrt(2 * freedom);
}

TEST(SampleAugmentation, IsUniformOverCropsFlipsAndSquares) {
  std::vector<int> crops(81, 0), flips(2, 0), cuts(625, 0), pairs(162, 0);
  for (std::int64_t sample = 0; sample < 100000; ++sample) {
    const Augmentation a = sample_augmentation(kAll, kImage, 3, 1, sample);
    const auto crop = static_cast<std::size_t>((a.dy + 4) * 9 + a.dx + 4);
    ++crops.at(crop);
    ++flips[a.flip];
    ++cuts.at(static_cast<std::size_t>(a.cut_y * 25 + a.cut_x));
    ++pairs[2 * crop + a.flip];  // Crop and flip are independent.
  }
  for (const auto* counts : {&crops, &flips, &cuts, &pairs}) {
    EXPECT_LT(chi_square(*counts), chi_square_limit(counts->size())) << counts->size();
  }
  // Negative control: the test sees an offset that comes half as often.
  std::vector<int> uneven = crops;
  uneven[0] /= 2;
  EXPECT_GT(chi_square(uneven), chi_square_limit(uneven.size()));
}

TEST(SampleAugmentation, AlternatesTheFlipOfEachSample) {
  const AugmentOptions options{.flip = true, .alternate_flip = true};
  int first = 0;
  for (std::int64_t sample = 0; sample < 1000; ++sample) {
    const bool flip = sample_augmentation(options, kImage, 3, 0, sample).flip;
    first += flip;
    for (std::int64_t epoch = 1; epoch < 6; ++epoch) {
      EXPECT_EQ(sample_augmentation(options, kImage, 3, epoch, sample).flip,
                flip != (epoch % 2 == 1));
    }
  }
  EXPECT_NEAR(first, 500, 5 * std::sqrt(250.0));  // Five standard deviations.
}

TEST(SampleAugmentation, LeavesOutWhatIsOff) {
  for (std::int64_t sample = 0; sample < 100; ++sample) {
    EXPECT_EQ(sample_augmentation({}, kImage, 3, 1, sample), Augmentation{});
  }
}

/// Sizes of the groups that share a value.
template <class Value>
std::vector<int> sizes_of(const std::vector<Augmentation>& all, Value value) {
  std::map<std::int64_t, int> sizes;
  for (const Augmentation& a : all) ++sizes[value(a)];
  std::vector<int> out;
  for (const auto& [key, n] : sizes) out.push_back(n);
  return out;
}

TEST(GroupAugmentations, CutTheDataIntoNearlyEqualGroups) {
  constexpr std::int64_t kCount = 50021;
  const auto all = group_augmentations(kAll, kImage, kCount, 3, 1);
  ASSERT_EQ(std::ssize(all), kCount);
  const auto crops = sizes_of(all, [](const Augmentation& a) { return a.dy * 9 + a.dx; });
  const auto flips = sizes_of(all, [](const Augmentation& a) { return a.flip; });
  const auto cuts = sizes_of(all, [](const Augmentation& a) { return a.cut_y * 25 + a.cut_x; });
  EXPECT_EQ(crops.size(), 81U);
  EXPECT_EQ(flips.size(), 2U);
  EXPECT_EQ(cuts.size(), 200U) << "of 625 squares at most 200 are used in an epoch";
  for (const auto* sizes : {&crops, &flips, &cuts}) {
    const auto [low, high] = std::ranges::minmax(*sizes);
    EXPECT_LE(high - low, 1);
  }
}

TEST(GroupAugmentations, ArePureAndDealAnewInEachEpoch) {
  const auto a = group_augmentations(kAll, kImage, 1000, 3, 1);
  EXPECT_EQ(a, group_augmentations(kAll, kImage, 1000, 3, 1));
  EXPECT_NE(a, group_augmentations(kAll, kImage, 1000, 3, 2));
  EXPECT_NE(a, group_augmentations(kAll, kImage, 1000, 4, 1));
  // Kinds are drawn independently: a crop does not determine the flip.
  std::set<std::pair<int, bool>> pairs;
  for (const Augmentation& one : a) pairs.emplace(one.dy * 9 + one.dx, one.flip);
  EXPECT_GT(pairs.size(), 140U) << "of 162";
}

TEST(GroupAugmentations, HoldForFewerSamplesThanOptions) {
  const auto all = group_augmentations(kAll, kImage, 5, 3, 1);
  EXPECT_EQ(sizes_of(all, [](const Augmentation& a) { return a.dy * 9 + a.dx; }),
            std::vector<int>(5, 1));
}

TEST(AugmentOptions, RefuseWhatAnImageCannotTake) {
  EXPECT_NO_THROW(kAll.validate(kImage));
  EXPECT_NO_THROW(AugmentOptions{.pad = 31}.validate(kImage));
  EXPECT_NO_THROW(AugmentOptions{.cutout = 32}.validate(kImage));
  EXPECT_THROW(AugmentOptions{.pad = 32}.validate(kImage), InvalidArgument);
  EXPECT_THROW(AugmentOptions{.pad = -1}.validate(kImage), InvalidArgument);
  EXPECT_THROW(AugmentOptions{.cutout = 33}.validate(kImage), InvalidArgument);
  EXPECT_THROW(AugmentOptions{.alternate_flip = true}.validate(kImage), InvalidArgument);
  EXPECT_THROW(
      (AugmentOptions{.flip = true, .alternate_flip = true, .randomness = Randomness::per_group}
           .validate(kImage)),
      InvalidArgument);
}

// --- what is done to an image -----------------------------------------------------------------

constexpr std::int64_t kHeight = 5, kWidth = 7;

/// An image without two equal pixels in a channel, and its plain normalised values.
struct Sample {
  explicit Sample(std::int64_t c)
      : channels(c), pixels(static_cast<std::size_t>(kHeight * kWidth * c)) {
    for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(3 + i);
    for (std::int64_t i = 0; i < c; ++i) {
      const auto x = static_cast<double>(i);
      normalization.mean.push_back(0.401 + 0.01 * x);
      normalization.stddev.push_back(0.2 + 0.03 * x);
    }
  }
  std::vector<float> write(const AugmentOptions& options, const Augmentation& change) const {
    std::vector<float> out(pixels.size());
    const ImageWriter<float> writer(normalization, {kHeight, kWidth, channels}, options);
    writer.write(pixels.data(), change, out.data());
    return out;
  }
  std::vector<float> plain() const {
    std::vector<float> out(pixels.size());
    ImageWriter<float>(normalization, {kHeight, kWidth, channels}, {})
        .write(pixels.data(), std::ssize(pixels) / channels, out.data());
    return out;
  }
  std::int64_t channels;
  std::vector<std::uint8_t> pixels;
  Normalization normalization;
};

std::size_t at(std::int64_t y, std::int64_t x, std::int64_t channels, std::int64_t c) {
  return static_cast<std::size_t>((y * kWidth + x) * channels + c);
}

/// Step by step until inside: slow, and right for any pad.
std::int64_t mirrored(std::int64_t i, std::int64_t n) {
  while (i < 0 || i >= n) i = i < 0 ? -i : 2 * n - 2 - i;
  return i;
}

TEST(ImageWriter, MovesAndMirrorsExactly) {
  for (const std::int64_t channels : {1, 2, 3}) {
    const Sample sample(channels);
    const std::vector<float> plain = sample.plain();
    for (const PadMode mode : {PadMode::reflect, PadMode::zero}) {
      const AugmentOptions options{.pad = 4, .pad_mode = mode, .flip = true};
      for (std::int32_t dy = -4; dy <= 4; ++dy) {
        for (std::int32_t dx = -4; dx <= 4; ++dx) {
          for (const bool flip : {false, true}) {
            const auto out = sample.write(options, {.dy = dy, .dx = dx, .flip = flip});
            for (std::int64_t y = 0; y < kHeight; ++y) {
              for (std::int64_t x = 0; x < kWidth; ++x) {
                const std::int64_t from_y = y + dy, from_x = (flip ? kWidth - 1 - x : x) + dx;
                const bool inside =
                    mirrored(from_y, kHeight) == from_y && mirrored(from_x, kWidth) == from_x;
                for (std::int64_t c = 0; c < channels; ++c) {
                  const float expected = inside || mode == PadMode::reflect
                                             ? plain[at(mirrored(from_y, kHeight),
                                                        mirrored(from_x, kWidth), channels, c)]
                                             : 0.0F;
                  ASSERT_EQ(out[at(y, x, channels, c)], expected)
                      << dy << ' ' << dx << ' ' << flip << " at " << y << ' ' << x;
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST(ImageWriter, ErasesTheSquareAndNothingElse) {
  const Sample sample(3);
  const std::vector<float> plain = sample.plain();
  EXPECT_EQ(std::ranges::count(plain, 0.0F), 0);
  for (const std::int32_t y0 : {0, 1, 2}) {
    for (const std::int32_t x0 : {0, 2, 4}) {
      const auto out = sample.write({.cutout = 3}, {.cut_y = y0, .cut_x = x0});
      for (std::int64_t y = 0; y < kHeight; ++y) {
        for (std::int64_t x = 0; x < kWidth; ++x) {
          const bool cut = y >= y0 && y < y0 + 3 && x >= x0 && x < x0 + 3;
          for (std::int64_t c = 0; c < 3; ++c) {
            EXPECT_EQ(out[at(y, x, 3, c)], cut ? 0.0F : plain[at(y, x, 3, c)]);
          }
        }
      }
    }
  }
}

TEST(ImageWriter, WithoutAChangeGivesThePlainValues) {
  for (const std::int64_t channels : {1, 3, 4}) {
    const Sample sample(channels);
    EXPECT_EQ(sample.write({.pad = 2, .flip = true}, {}), sample.plain());
  }
}

}  // namespace
}  // namespace dkfac::data
