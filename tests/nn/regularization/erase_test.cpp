#include "dkfac/nn/erase.h"

#include <cmath>

#include <gtest/gtest.h>

#include "nn/nn_support.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

constexpr int kDraws = 20000;
const Shape kLarge{400, 400, 3};  // So large that whole pixels round next to nothing.

std::vector<Hole> holes(const EraseOptions& options, const Shape& image) {
  std::vector<Hole> out;
  for (int i = 0; i < kDraws; ++i) out.push_back(sample_hole(options, image, {7, 3, 0}, i));
  return out;
}

TEST(SampleHole, HasTheProbabilityThatIsAskedFor) {
  for (const double p : {0.0, 0.5, 1.0}) {
    int count = 0;
    for (const Hole& hole : holes({.probability = p}, kLarge)) count += hole.height > 0 ? 1 : 0;
    // Five standard deviations of a binomial share.
    EXPECT_NEAR(static_cast<double>(count) / kDraws, p, 5 * std::sqrt(p * (1 - p) / kDraws));
  }
}

TEST(SampleHole, HasUniformAreasAndAspects) {
  double area = 0, area2 = 0, aspect = 0;
  int tall = 0;
  for (const Hole& hole : holes({.probability = 1}, kLarge)) {
    const auto h = static_cast<double>(hole.height), w = static_cast<double>(hole.width);
    const double share = h * w / (400.0 * 400.0);
    // A side of 31 pixels or more is rounded by half a pixel.
    ASSERT_GT(share, 0.02 * 0.95);
    ASSERT_LT(share, 0.25 * 1.02);
    ASSERT_GT(std::min(h, w) / std::max(h, w), 0.3 * 0.97);
    area += share;
    area2 += share * share;
    aspect += std::min(h, w) / std::max(h, w);
    tall += h > w ? 1 : 0;
    ASSERT_LE(hole.y + hole.height, 400);
    ASSERT_LE(hole.x + hole.width, 400);
  }
  // U(lo, hi): mean (lo + hi)/2, variance (hi - lo)^2/12, second moment (hi^3 - lo^3)/(3 (hi -
  // lo)), fourth (hi^5 - lo^5)/(5 (hi - lo)); five standard deviations, and 0.1% of rounding to
  // pixels.
  EXPECT_NEAR(area / kDraws, 0.135, 5 * 0.23 / std::sqrt(12.0 * kDraws) + 0.001 * 0.135);
  const double second = (std::pow(0.25, 3) - std::pow(0.02, 3)) / (3 * 0.23);
  const double fourth = (std::pow(0.25, 5) - std::pow(0.02, 5)) / (5 * 0.23);
  EXPECT_NEAR(area2 / kDraws, second,
              5 * std::sqrt((fourth - second * second) / kDraws) + 0.001 * second);
  EXPECT_NEAR(aspect / kDraws, 0.65, 5 * 0.7 / std::sqrt(12.0 * kDraws) + 0.001 * 0.65);
  EXPECT_NEAR(static_cast<double>(tall) / kDraws, 0.5, 5 * 0.5 / std::sqrt(kDraws) + 0.005);
}

TEST(SampleHole, LiesAnywhereInTheImageAndNowhereElse) {
  const Shape image{5, 9, 1};
  const EraseOptions options{.probability = 1, .min_area = 0.05, .max_area = 1, .min_aspect = 0.2};
  double least_y = 9, least_x = 9, most_y = 0, most_x = 0;
  for (const Hole& hole : holes(options, image)) {
    ASSERT_GE(hole.y, 0);
    ASSERT_GE(hole.x, 0);
    ASSERT_GE(hole.height, 1);
    ASSERT_GE(hole.width, 1);
    ASSERT_LE(hole.y + hole.height, 5);
    ASSERT_LE(hole.x + hole.width, 9);
    least_y = std::min(least_y, static_cast<double>(hole.y));
    least_x = std::min(least_x, static_cast<double>(hole.x));
    most_y = std::max(most_y, static_cast<double>(hole.y + hole.height));
    most_x = std::max(most_x, static_cast<double>(hole.x + hole.width));
  }
  EXPECT_EQ(least_y, 0);
  EXPECT_EQ(least_x, 0);
  EXPECT_EQ(most_y, 5);
  EXPECT_EQ(most_x, 9);
}

TEST(EraseHoles, PutsZerosInTheHolesAndLeavesTheRest) {
  Context ctx;
  const EraseOptions options{.probability = 0.7};
  const SampleKey key{5, 2, 30};
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    Tensor images =
        cast_to(ctx, random_tensor(ctx, Shape{12, 8, 6, 3}, DType::f64, 1, 1, 2), dtype);
    auto expected = values(ctx, images);
    int erased = 0;
    for (std::int64_t i = 0; i < 12; ++i) {
      const Hole hole = sample_hole(options, Shape{8, 6, 3}, key, i);
      for (std::int64_t y = hole.y; y < hole.y + hole.height; ++y) {
        for (std::int64_t x = hole.x; x < hole.x + hole.width; ++x) {
          for (std::int64_t c = 0; c < 3; ++c) {
            expected[static_cast<std::size_t>(((i * 8 + y) * 6 + x) * 3 + c)] = 0;
            ++erased;
          }
        }
      }
    }
    EXPECT_GT(erased, 0);
    erase_holes(ctx, options, key, images);
    EXPECT_EQ(values(ctx, images), expected);
  }
}

TEST(EraseHoles, MakesTheSameHolesAtEveryRankCountAndOthersInEveryStep) {
  Context ctx;
  const EraseOptions options{.probability = 0.7};
  const auto erased = [&](std::uint64_t seed, std::int64_t step, std::int64_t ranks) {
    Tensor images = Tensor::empty(ctx, Shape{8, 8, 6, 1}, DType::f32);
    ops::fill(ctx, images, 1);
    const std::int64_t share = 8 / ranks;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      erase_holes(ctx, options, {seed, step, rank * share},
                  images.view().slice(0, rank * share, share));
    }
    return values(ctx, images);
  };
  for (const std::int64_t ranks : {2, 4, 8}) EXPECT_EQ(erased(5, 2, ranks), erased(5, 2, 1));
  EXPECT_NE(erased(5, 3, 1), erased(5, 2, 1));
  EXPECT_NE(erased(6, 2, 1), erased(5, 2, 1));
}

TEST(SampleHole, RefusesImagesWithoutPixelsAndInvalidOptions) {
  const auto message = [](const EraseOptions& options, const Shape& image) {
    return message_of([&] { (void)sample_hole(options, image, {7, 3, 0}, 0); });
  };
  for (const Shape& image : {Shape{}, Shape{8, 6}, Shape{0, 6, 3}, Shape{8, 0, 3}})
    EXPECT_TRUE(contains(message({.probability = 1}, image), "it must be [h, w, c] with pixels"));
  EXPECT_TRUE(contains(message({.probability = 2}, Shape{8, 6, 3}), "probability is 2"));
}

TEST(EraseOptions, AreCheckedByName) {
  const auto message = [](const EraseOptions& options) {
    return message_of([&] { options.validate(); });
  };
  EXPECT_TRUE(contains(message({.probability = 1.5}), "probability is 1.5"));
  EXPECT_TRUE(contains(message({.min_area = 0.3}), "areas are from 0.3 to 0.25"));
  EXPECT_TRUE(contains(message({.min_area = 0}), "areas are from 0"));
  EXPECT_TRUE(contains(message({.max_area = 1.1}), "to 1.1"));
  EXPECT_TRUE(contains(message({.min_aspect = 2}), "aspects are from 2 to 1"));
  EXPECT_EQ(message({}), "");
}

}  // namespace
}  // namespace dkfac::nn
