// PNG photographs, as Pillow's convert("RGB") gives them.

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/data/image.h"

#include "data/png_files.h"

namespace dkfac::testing {
namespace {

using Bytes = std::vector<std::uint8_t>;

data::Image png_decoded(const Bytes& file, const data::DecodeOptions& options = {}) {
  data::Image image;
  data::decode_photo(file, options, image);
  return image;
}

std::string png_complaint(const Bytes& file, const data::DecodeOptions& options = {}) {
  try {
    (void)png_decoded(file, options);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

/// The RGB pixels by the definition of the formats.
Bytes expected_rgb(const PngFile& file) {
  Bytes out;
  for (int y = 0; y < file.height; ++y)
    for (int x = 0; x < file.width; ++x)
      for (int c = 0; c < 3; ++c) {
        const bool colours = file.color == 2 || file.color == 6;
        const unsigned sample = file.sample(y, x, colours ? c : 0);
        unsigned value = sample;
        if (file.color == 3)
          value = file.palette[3 * sample + static_cast<unsigned>(c)];
        else if (file.depth < 8)
          value = sample * 255 / ((1U << file.depth) - 1);
        else if (file.depth == 16)
          value = file.color == 0 ? std::min(sample, 255U) : sample >> 8U;
        out.push_back(static_cast<std::uint8_t>(value));
      }
  return out;
}

Bytes palette_of(int entries) {
  Bytes out;
  for (int i = 0; i < 3 * entries; ++i) out.push_back(static_cast<std::uint8_t>(37 * i + 5));
  return out;
}

TEST(Png, EveryKindOfPixelIsThatOfPillow) {
  std::vector<PngFile> kinds;
  for (const bool adam7 : {false, true}) {
    for (const int depth : {1, 2, 4, 8, 16})
      kinds.push_back({.depth = depth, .color = 0, .adam7 = adam7});
    for (const int depth : {1, 2, 4, 8})
      kinds.push_back(
          {.depth = depth, .color = 3, .adam7 = adam7, .palette = palette_of(1 << depth)});
    for (const int color : {2, 4, 6})
      for (const int depth : {8, 16})
        kinds.push_back({.depth = depth, .color = color, .adam7 = adam7});
  }
  for (const PngFile& kind : kinds) {
    const data::Image image = png_decoded(encode_png(kind));
    EXPECT_EQ(image.height, kind.height);
    EXPECT_EQ(image.width, kind.width);
    EXPECT_EQ(image.pixels, expected_rgb(kind))
        << "color " << kind.color << " depth " << kind.depth << " interlaced " << kind.adam7;
    const data::ImageSize size = data::photo_size(encode_png(kind));
    EXPECT_EQ(size.height * 100 + size.width, kind.height * 100 + kind.width);
  }
}

// Pillow's values, so that the expectation above is not only ours: the CRC-32 of the pixels of
// Image.open(file).convert("RGB") of Pillow 9.4 and 13.0.
TEST(Png, PixelsHaveTheSumsOfPillow) {
  const auto sum = [](const PngFile& file) {
    const data::Image image = png_decoded(encode_png(file));
    return crc32_z(0, image.pixels.data(), image.pixels.size());
  };
  EXPECT_EQ(sum({.depth = 16, .color = 6, .adam7 = true}), 0xD50345E9U);
  EXPECT_EQ(sum({.depth = 16, .color = 0}), 0x90476380U);
  EXPECT_EQ(sum({.depth = 2, .color = 0}), 0x0736386DU);
  EXPECT_EQ(sum({.depth = 4, .color = 3, .palette = palette_of(16), .transparency = {0, 128}}),
            0x4FE7A2E6U);
}

TEST(Png, TransparencyLeavesTheColourBeneath) {
  PngFile palette{.depth = 8, .color = 3, .palette = palette_of(256)};
  const Bytes opaque = png_decoded(encode_png(palette)).pixels;
  palette.transparency = Bytes(256, 0);
  EXPECT_EQ(png_decoded(encode_png(palette)).pixels, opaque);
  for (const int color : {0, 2}) {
    PngFile file{.color = color};
    const Bytes whole = png_decoded(encode_png(file)).pixels;
    for (int c = 0; c < file.channels(); ++c) {
      file.transparency.push_back(0);
      file.transparency.push_back(static_cast<std::uint8_t>(file.sample(0, 0, c)));
    }
    EXPECT_EQ(png_decoded(encode_png(file)).pixels, whole) << "the first pixel is transparent";
  }
}

TEST(PngFaults, AFileThatEndsEarlyIsRefused) {
  for (const bool adam7 : {false, true}) {
    const Bytes whole = encode_png({.adam7 = adam7});
    for (std::size_t size = 4; size < whole.size(); ++size) {
      const Bytes part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
      EXPECT_NE(png_complaint(part), "") << size << " of " << whole.size() << " bytes";
    }
    EXPECT_EQ(png_complaint(whole), "");
  }
}

TEST(PngFaults, EveryFlippedBitIsNoticedByTheSums) {
  const Bytes whole = encode_png({.depth = 4, .color = 3, .palette = palette_of(16)});
  for (std::size_t i = 0; i < whole.size(); ++i) {
    Bytes bad = whole;
    bad[i] ^= 4U;
    EXPECT_NE(png_complaint(bad), "") << "byte " << i << " of " << whole.size();
  }
}

TEST(PngFaults, MissingRowsAreRefused) {
  const PngFile file;
  Bytes rows = png_rows(file);
  EXPECT_EQ(png_complaint(encode_png(file, rows)), "");
  rows.resize(rows.size() - 1);
  EXPECT_NE(png_complaint(encode_png(file, rows)), "");
}

TEST(PngFaults, AHugeHeaderTakesNoMemory) {
  const Bytes file = encode_png({.height = 60'000, .width = 60'000}, Bytes(100));
  EXPECT_NE(png_complaint(file).find("60000 x 60000"), std::string::npos) << png_complaint(file);
  const Bytes small = encode_png({});
  EXPECT_NE(png_complaint(small, {.max_pixels = 76}).find("limit"), std::string::npos);
  EXPECT_EQ(png_complaint(small, {.max_pixels = 77}), "");
}

}  // namespace
}  // namespace dkfac::testing
