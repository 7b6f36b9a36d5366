#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/data/image.h"

#include "data/jpeg_files.h"

namespace dkfac::testing {
namespace {

data::Image decoded(const Bytes& file, const data::DecodeOptions& options = {}) {
  data::Image image;
  data::decode_jpeg(file, options, image);
  return image;
}

std::string complaint(const Bytes& file, const data::DecodeOptions& options = {}) {
  try {
    (void)decoded(file, options);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

int largest_difference(const Bytes& a, const Bytes& b) {
  int largest = a.size() == b.size() ? 0 : 999;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    largest = std::max(largest, std::abs(int{a[i]} - int{b[i]}));
  return largest;
}

TEST(Jpeg, ColoursComeBackNearly) {
  const JpegFile file{.quality = 100};
  Bytes flat(static_cast<std::size_t>(file.height * file.width * 3));
  for (std::size_t i = 0; i < flat.size(); ++i)
    flat[i] = static_cast<std::uint8_t>(40 + i % 3 * 70);
  const data::Image image = decoded(encode_jpeg(file, flat));
  EXPECT_EQ(image.height, 16);
  EXPECT_EQ(image.width, 24);
  // One colour: quantised by less than one level, and two conversions of colours.
  EXPECT_LE(largest_difference(image.pixels, flat), 2);
  std::reverse(flat.begin(), flat.end());  // Red and blue exchanged: the comparison can fail.
  EXPECT_GT(largest_difference(image.pixels, flat), 100);
}

TEST(Jpeg, GreyGetsThreeEqualChannels) {
  const JpegFile file{.channels = 1, .colors = JCS_GRAYSCALE, .quality = 100};
  const Bytes grey = smooth_pixels(file);
  const data::Image image = decoded(encode_jpeg(file, grey));
  ASSERT_EQ(image.pixels.size(), 3 * grey.size());
  for (std::size_t i = 0; i < grey.size(); ++i) {
    EXPECT_NEAR(int{image.pixels[3 * i]}, int{grey[i]}, 2);
    EXPECT_EQ(image.pixels[3 * i], image.pixels[3 * i + 1]);
    EXPECT_EQ(image.pixels[3 * i], image.pixels[3 * i + 2]);
  }
}

TEST(Jpeg, InksAreThoseOfAdobe) {
  const JpegFile file{.channels = 4, .colors = JCS_CMYK, .quality = 100};
  Bytes inks(static_cast<std::size_t>(file.height * file.width * 4));
  for (std::size_t i = 0; i < inks.size(); i += 4) {
    inks[i] = 255;  // No cyan, all magenta, half of the yellow, a fifth black.
    inks[i + 1] = 0;
    inks[i + 2] = 128;
    inks[i + 3] = 204;
  }
  const data::Image image = decoded(encode_jpeg(file, inks));
  EXPECT_NEAR(int{image.pixels[0]}, 204, 2);
  EXPECT_NEAR(int{image.pixels[1]}, 0, 2);
  EXPECT_NEAR(int{image.pixels[2]}, 102, 2);
}

TEST(Jpeg, ProgressiveFilesAreEqualToOthers) {
  EXPECT_EQ(decoded(encode_jpeg({})).pixels, decoded(encode_jpeg({.progressive = true})).pixels);
}

TEST(Jpeg, ASmallerPictureWillDo) {
  const Bytes file = encode_jpeg({.height = 64, .width = 96});
  const auto size = [&](std::int64_t height, std::int64_t width) {
    const data::Image image = decoded(file, {.enough_height = height, .enough_width = width});
    return std::pair(image.height, image.width);
  };
  EXPECT_EQ(size(32, 48), std::pair(std::int64_t{32}, std::int64_t{48}));
  EXPECT_EQ(size(33, 48), std::pair(std::int64_t{64}, std::int64_t{96}));
  EXPECT_EQ(size(8, 12), std::pair(std::int64_t{8}, std::int64_t{12}));
  EXPECT_EQ(size(0, 0), std::pair(std::int64_t{64}, std::int64_t{96}));
}

TEST(Jpeg, TheSizeIsKnownWithoutDecoding) {
  const data::ImageSize size = data::jpeg_size(encode_jpeg({.height = 7, .width = 5}));
  EXPECT_EQ(size.height, 7);
  EXPECT_EQ(size.width, 5);
}

TEST(Jpeg, OnePixelIsAPicture) {
  EXPECT_EQ(decoded(encode_jpeg({.height = 1, .width = 1})).pixels.size(), 3U);
}

TEST(JpegFaults, OtherFormatsAreNamed) {
  EXPECT_NE(complaint({}).find("empty"), std::string::npos);
  EXPECT_NE(complaint({0x89, 'P', 'N', 'G', 13, 10, 26, 10}).find("PNG"), std::string::npos);
  EXPECT_NE(complaint({'R', 'I', 'F', 'F', 1, 0, 0, 0, 'W', 'E', 'B', 'P'}).find("WebP"),
            std::string::npos);
  EXPECT_NE(complaint({'G', 'I', 'F', '8', '9', 'a'}).find("GIF"), std::string::npos);
  EXPECT_NE(complaint(Bytes(100, 7)).find("no photograph"), std::string::npos);
}

TEST(JpegFaults, AFileThatEndsEarlyIsRefused) {
  const Bytes whole = encode_jpeg({});
  for (std::size_t size = 3; size + 2 < whole.size(); size += 7) {
    const Bytes part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_NE(complaint(part), "") << size << " of " << whole.size() << " bytes";
  }
  EXPECT_EQ(complaint(whole), "");
}

TEST(JpegFaults, FlippedBytesNeverCrash) {
  const Bytes whole = encode_jpeg({.progressive = true});
  std::uint32_t state = 12345;
  int refused = 0;
  for (int round = 0; round < 400; ++round) {
    Bytes file = whole;
    for (int k = 0; k < 3; ++k) {
      state = state * 1664525U + 1013904223U;
      file[(state >> 8U) % file.size()] = static_cast<std::uint8_t>(state >> 24U);
    }
    refused += complaint(file).empty() ? 0 : 1;
  }
  EXPECT_GT(refused, 0);  // Others differ in pixels alone.
}

TEST(JpegFaults, AHugeHeaderTakesNoMemory) {
  Bytes file = encode_jpeg({});
  // The start of frame: FF C0, length, precision, height, width.
  const Bytes marker{0xFF, 0xC0};
  const auto at = std::search(file.begin(), file.end(), marker.begin(), marker.end());
  ASSERT_NE(at, file.end());
  std::fill(at + 5, at + 9, std::uint8_t{0xFD});
  EXPECT_NE(complaint(file).find("65021 x 65021"), std::string::npos);
  EXPECT_NE(complaint(encode_jpeg({}), {.max_pixels = 383}).find("limit"), std::string::npos);
  EXPECT_EQ(complaint(encode_jpeg({}), {.max_pixels = 384}), "");
}

/// Where pixels of the region differ, which is nowhere.
std::int64_t differences(const data::Image& a, const data::Image& b, const data::Box& region) {
  std::int64_t found = a.height == b.height && a.width == b.width ? 0 : 999;
  for (std::int64_t y = region.y; found < 999 && y < region.y + region.height; ++y)
    for (std::int64_t i = 3 * region.x; i < 3 * (region.x + region.width); ++i) {
      const auto at = static_cast<std::size_t>(3 * y * a.width + i);
      found += a.pixels[at] != b.pixels[at] ? 1 : 0;
    }
  return found;
}

/// Kinds of files whose upsampling looks around in different ways.
std::vector<JpegFile> kinds() {
  std::vector<JpegFile> out;
  for (const auto& [across, down] : {std::pair{1, 1}, {2, 1}, {2, 2}, {1, 2}})
    for (const bool progressive : {false, true})
      out.push_back({.height = 171,
                     .width = 197,
                     .progressive = progressive,
                     .across = across,
                     .down = down});
  out.push_back({.height = 150, .width = 133, .channels = 1, .colors = JCS_GRAYSCALE});
  out.push_back({.height = 150, .width = 133, .channels = 4, .colors = JCS_CMYK});
  return out;
}

TEST(Jpeg, ARegionHasThePixelsOfTheWhole) {
  for (const JpegFile& kind : kinds()) {
    Bytes noisy = smooth_pixels(kind);
    for (std::size_t i = 0; i < noisy.size(); ++i)
      noisy[i] = static_cast<std::uint8_t>(noisy[i] + (i * i * 7919 >> 5) % 40);
    const Bytes file = encode_jpeg(kind, noisy);
    const data::Image whole = decoded(file);
    for (const data::Box& region :
         {data::Box{0, 0, 5, 5}, data::Box{80, 90, 9, 3},
          data::Box{whole.height - 1, whole.width - 1, 1, 1}, data::Box{64, 0, 16, whole.width},
          data::Box{0, 64, whole.height, 48}, data::Box{49, 47, 17, 33},
          data::Box{0, 0, whole.height, whole.width}}) {
      // What is not wanted is not written: memory of another colour shows that.
      data::Image part{whole.height, whole.width, Bytes(whole.pixels.size(), 3)};
      data::decode_jpeg(file, {.region = region}, part);
      EXPECT_EQ(differences(whole, part, region), 0)
          << region.y << " " << region.x << " across " << kind.across << " down " << kind.down
          << " progressive " << kind.progressive << " channels " << kind.channels;
      if (region.width < 40 && region.height < 40) {
        EXPECT_GT(differences(whole, part, {0, 0, whole.height, whole.width}), 0);
      }
    }
  }
}

// Of a good file of 2x4, libjpeg-turbo 2.1 reports damage when a region is decoded at half the
// size, and never returns when the file is progressive.
TEST(Jpeg, APictureWhereManyPixelsShareAColourIsDecodedWhole) {
  for (const bool progressive : {false, true}) {
    for (const auto& [across, down] : {std::pair{2, 4}, {4, 2}, {4, 1}, {1, 4}}) {
      const Bytes file = encode_jpeg({.height = 138,
                                      .width = 131,
                                      .progressive = progressive,
                                      .across = across,
                                      .down = down});
      const data::Image whole = decoded(file);
      for (const std::int64_t enough : {60, 0}) {
        const data::DecodeOptions options{
            .enough_height = enough, .enough_width = enough, .region = {50, 31, 10, 10}};
        ASSERT_EQ(complaint(file, options), "") << across << "x" << down << " enough " << enough;
        EXPECT_EQ(decoded(file, options).pixels, whole.pixels) << across << "x" << down;
      }
    }
  }
}

TEST(JpegFaults, DamageOutsideOfARegionIsFoundAllTheSame) {
  constexpr std::int64_t kMost = 40'000;
  int damaged = 0, sound = 0;
  for (const bool progressive : {false, true}) {
    const Bytes good = encode_jpeg({.height = 120, .width = 130, .progressive = progressive});
    for (std::size_t i = 2; i < good.size(); i += 3) {
      Bytes bad = good;
      bad[i] ^= 0x10U;
      const bool whole = complaint(bad, {.max_pixels = kMost}).empty();
      for (const data::Box& region : {data::Box{0, 0, 3, 4}, data::Box{110, 3, 5, 9}}) {
        // A changed size may leave the region outside.
        if (whole && (decoded(bad).height < 120 || decoded(bad).width < 130)) continue;
        EXPECT_EQ(complaint(bad, {.max_pixels = kMost, .region = region}).empty(), whole)
            << "byte " << i;
      }
      ++(whole ? sound : damaged);
    }
    for (std::size_t length = 2; length < good.size(); length += 5) {
      const Bytes cut(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length));
      EXPECT_NE(complaint(cut, {.region = {0, 0, 3, 4}}), "") << length;
    }
  }
  EXPECT_GT(damaged, 100);
  EXPECT_GT(sound, 100);
}

TEST(JpegFaults, TooManyScansAreRefused) {
  const Bytes file = encode_jpeg({.progressive = true});
  EXPECT_NE(complaint(file, {.max_scans = 2}).find("scans"), std::string::npos);
  EXPECT_EQ(complaint(file, {.max_scans = 20}), "");
}

}  // namespace
}  // namespace dkfac::testing
