#include <algorithm>
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/nn/image.h"

#include "jpeg_files.h"

namespace dkfac::testing {
namespace {

nn::Image decoded(const Bytes& file, const nn::DecodeOptions& options = {}) {
  nn::Image image;
  nn::decode_jpeg(file, options, image);
  return image;
}

std::string complaint(const Bytes& file, const nn::DecodeOptions& options = {}) {
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
  const nn::Image image = decoded(encode_jpeg(file, flat));
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
  const nn::Image image = decoded(encode_jpeg(file, grey));
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
  const nn::Image image = decoded(encode_jpeg(file, inks));
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
    const nn::Image image = decoded(file, {.enough_height = height, .enough_width = width});
    return std::pair(image.height, image.width);
  };
  EXPECT_EQ(size(32, 48), std::pair(std::int64_t{32}, std::int64_t{48}));
  EXPECT_EQ(size(33, 48), std::pair(std::int64_t{64}, std::int64_t{96}));
  EXPECT_EQ(size(8, 12), std::pair(std::int64_t{8}, std::int64_t{12}));
  EXPECT_EQ(size(0, 0), std::pair(std::int64_t{64}, std::int64_t{96}));
}

TEST(Jpeg, TheSizeIsKnownWithoutDecoding) {
  const nn::ImageSize size = nn::jpeg_size(encode_jpeg({.height = 7, .width = 5}));
  EXPECT_EQ(size.height, 7);
  EXPECT_EQ(size.width, 5);
}

TEST(Jpeg, OnePixelIsAPicture) {
  EXPECT_EQ(decoded(encode_jpeg({.height = 1, .width = 1})).pixels.size(), 3U);
}

TEST(JpegFaults, OtherFormatsAreNamed) {
  EXPECT_NE(complaint({}).find("empty"), std::string::npos);
  EXPECT_NE(complaint({0x89, 'P', 'N', 'G', 13, 10, 26, 10}).find("PNG"), std::string::npos);
  EXPECT_NE(complaint({'G', 'I', 'F', '8', '9', 'a'}).find("GIF"), std::string::npos);
  EXPECT_NE(complaint(Bytes(100, 7)).find("no JPEG"), std::string::npos);
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

TEST(JpegFaults, TooManyScansAreRefused) {
  const Bytes file = encode_jpeg({.progressive = true});
  EXPECT_NE(complaint(file, {.max_scans = 2}).find("scans"), std::string::npos);
  EXPECT_EQ(complaint(file, {.max_scans = 20}), "");
}

}  // namespace
}  // namespace dkfac::testing
