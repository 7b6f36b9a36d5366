#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/data/image.h"

#include "core/shared/simd.h"

namespace dkfac::testing {
namespace {

data::Image noise(std::int64_t height, std::int64_t width) {
  data::Image image{height, width, {}};
  std::uint32_t state = 99;
  for (std::int64_t i = 0; i < 3 * height * width; ++i) {
    state = state * 1664525U + 1013904223U;
    image.pixels.push_back(static_cast<std::uint8_t>(state >> 24U));
  }
  return image;
}

std::vector<std::uint8_t> resized(const data::Image& image, const data::Box& box,
                                  std::int64_t height, std::int64_t width) {
  std::vector<std::uint8_t> out(static_cast<std::size_t>(3 * height * width)), scratch;
  data::resize_bilinear(image, box, height, width, out.data(), scratch);
  return out;
}

/// The triangle filter by its definition, in real numbers: weight of input i for output o.
double weight(std::int64_t in, std::int64_t out, std::int64_t o, std::int64_t i) {
  const double scale = static_cast<double>(in) / static_cast<double>(out);
  const double stretch = std::max(scale, 1.0);
  const double center = (static_cast<double>(o) + 0.5) * scale;
  const auto at = [&](std::int64_t k) {
    return std::max(0.0, 1 - std::abs(static_cast<double>(k) + 0.5 - center) / stretch);
  };
  double sum = 0;
  for (std::int64_t k = 0; k < in; ++k) sum += at(k);
  return at(i) / sum;
}

TEST(Resize, IsTheTriangleFilter) {
  const data::Image image = noise(19, 23);
  const data::Box box{2, 3, 14, 17};
  for (const auto& [height, width] : {std::pair{5, 6}, {31, 40}, {14, 9}, {7, 17}}) {
    const auto out = resized(image, box, height, width);
    double worst = 0;
    for (std::int64_t y = 0; y < height; ++y)
      for (std::int64_t x = 0; x < width; ++x)
        for (std::int64_t c = 0; c < 3; ++c) {
          double expected = 0;
          for (std::int64_t i = 0; i < box.height; ++i)
            for (std::int64_t j = 0; j < box.width; ++j)
              expected += weight(box.height, height, y, i) * weight(box.width, width, x, j) *
                          image.pixels[static_cast<std::size_t>(
                              ((box.y + i) * image.width + box.x + j) * 3 + c)];
          const double got = out[static_cast<std::size_t>((y * width + x) * 3 + c)];
          worst = std::max(worst, std::abs(got - expected));
        }
    // Each pass rounds by half a level; weights are exact to 2^-22.
    EXPECT_LE(worst, 1.01) << height << "x" << width;
  }
}

TEST(Resize, TheSameSizeKeepsEveryBit) {
  const data::Image image = noise(8, 9);
  EXPECT_EQ(resized(image, {0, 0, 8, 9}, 8, 9), image.pixels);
}

TEST(Resize, DoesNotLookOutsideOfTheBox) {
  data::Image image = noise(12, 12);
  const data::Box box{3, 4, 6, 5};
  const auto before = resized(image, box, 4, 4);
  for (std::int64_t y = 0; y < 12; ++y)
    for (std::int64_t x = 0; x < 12; ++x)
      if (y < 3 || y >= 9 || x < 4 || x >= 9)
        std::fill_n(image.pixels.begin() + (y * 12 + x) * 3, 3, std::uint8_t{255});
  EXPECT_EQ(resized(image, box, 4, 4), before);
  EXPECT_NE(resized(image, {2, 4, 6, 5}, 4, 4), before);
}

/// [window] of a picture of 3 * `width` values a row.
std::vector<std::uint8_t> cut(const std::vector<std::uint8_t>& pixels, std::int64_t width,
                              const data::Box& window) {
  std::vector<std::uint8_t> out;
  for (std::int64_t y = window.y; y < window.y + window.height; ++y) {
    const auto row = pixels.begin() + 3 * (y * width + window.x);
    out.insert(out.end(), row, row + 3 * window.width);
  }
  return out;
}

TEST(Resize, AWindowHasTheBitsOfTheWhole) {
  const data::Image image = noise(40, 33);
  const data::Box box{2, 3, 30, 28};
  for (const auto& [height, width] : {std::pair{12, 11}, {61, 290}, {30, 11}, {12, 28}, {30, 28}}) {
    const auto whole = resized(image, box, height, width);
    for (const data::Box& window : {data::Box{0, 0, height, width}, data::Box{3, 4, 5, 6},
                                    data::Box{height - 1, width - 1, 1, 1}}) {
      std::vector<std::uint8_t> scratch,
          out(static_cast<std::size_t>(3 * window.height * window.width), 7);
      data::resize_bilinear(image, box, height, width, window, out.data(), scratch);
      EXPECT_EQ(out, cut(whole, width, window)) << height << "x" << width << " at " << window.y;
    }
  }
}

TEST(Resize, HasTheSameBitsOnEveryProcessorAndForRowsInAnyCompany) {
  const data::Image image = noise(61, 83);
  const cpu::Simd widest = cpu::simd_level();
  for (const data::Box& box : {data::Box{0, 0, 61, 83}, {3, 5, 50, 70}, {58, 0, 3, 83}}) {
    for (const auto& [height, width] : {std::pair{1, 1}, {20, 31}, {61, 40}, {90, 120}}) {
      const auto expected = resized(image, box, height, width);
      for (const cpu::Simd level : {cpu::Simd::baseline, cpu::Simd::avx2, widest}) {
        cpu::limit_simd(level);
        EXPECT_EQ(resized(image, box, height, width), expected);
      }
      // With a row of pixels below it is no longer the last row that is alone.
      data::Image longer = image;
      longer.pixels.resize(longer.pixels.size() + 3 * 83, 7);
      ++longer.height;
      EXPECT_EQ(resized(longer, box, height, width), expected);
    }
  }
}

TEST(Resize, APartOfAPixelCountsInPart) {
  // A ramp stays one, whatever is cut out of it: output x is the middle of its share of the area.
  data::Image image{4, 64, {}};
  for (int y = 0; y < 4; ++y)
    for (int x = 0; x < 64; ++x)
      for (int c = 0; c < 3; ++c) image.pixels.push_back(static_cast<std::uint8_t>(4 * x));
  const data::Area area{0.5, 10.3, 2.5, 40.6};
  std::vector<std::uint8_t> scratch, out(3 * 14);
  data::resize_bilinear(image, area, 1, 14, {0, 0, 1, 14}, out.data(), scratch);
  for (int x = 2; x < 12; ++x) {  // Not at the ends, where the filter is cut off.
    const double expected = 4 * (area.x + (x + 0.5) * area.width / 14 - 0.5);
    EXPECT_NEAR(out[static_cast<std::size_t>(3 * x)], expected, 1.01) << x;
  }
  EXPECT_THROW(data::resize_bilinear(image, data::Area{0, 0, 4.1, 1}, 1, 1, {0, 0, 1, 1},
                                     out.data(), scratch),
               InvalidArgument);
}

TEST(Resize, RefusesAWindowThatIsNotInside) {
  const data::Image image = noise(4, 4);
  std::vector<std::uint8_t> scratch, out(48);
  for (const data::Box& window : {data::Box{0, 0, 3, 2}, data::Box{1, 0, 2, 1},
                                  data::Box{0, -1, 1, 1}, data::Box{0, 0, 0, 1}})
    EXPECT_THROW(
        data::resize_bilinear(image, data::Box{0, 0, 4, 4}, 2, 2, window, out.data(), scratch),
        InvalidArgument);
}

TEST(Resize, RefusesABoxThatIsNotInside) {
  const data::Image image = noise(4, 4);
  EXPECT_THROW((void)resized(image, {1, 0, 4, 4}, 2, 2), InvalidArgument);
  EXPECT_THROW((void)resized(image, {0, 0, 4, 4}, 0, 2), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::testing
