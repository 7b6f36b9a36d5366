// WebP photographs.

#include <cstdlib>
#include <string>
#include <vector>
#include <webp/encode.h>

#include <gtest/gtest.h>
#include <zlib.h>

#include "dkfac/core/error.h"
#include "dkfac/data/image.h"

namespace dkfac::testing {
namespace {

using Bytes = std::vector<std::uint8_t>;
constexpr int kHeight = 19, kWidth = 13;

data::Image webp_decoded(const Bytes& file, const data::DecodeOptions& options = {}) {
  data::Image image;
  data::decode_photo(file, options, image);
  return image;
}

std::string webp_complaint(const Bytes& file, const data::DecodeOptions& options = {}) {
  try {
    (void)webp_decoded(file, options);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

Bytes webp_pixels(int channels) {
  Bytes out;
  for (int i = 0; i < kHeight * kWidth * channels; ++i)
    out.push_back(static_cast<std::uint8_t>(i * i * 7 + 13 * i));
  return out;
}

Bytes taken(std::uint8_t* memory, std::size_t size) {
  Bytes out(memory, memory + size);
  WebPFree(memory);
  return out;
}

Bytes lossless(int channels) {
  const Bytes pixels = webp_pixels(channels);
  std::uint8_t* memory = nullptr;
  const std::size_t size =
      channels == 3 ? WebPEncodeLosslessRGB(pixels.data(), kWidth, kHeight, 3 * kWidth, &memory)
                    : WebPEncodeLosslessRGBA(pixels.data(), kWidth, kHeight, 4 * kWidth, &memory);
  return taken(memory, size);
}

// A ramp of 16x12, quality 50, by Pillow 9.4.
const Bytes kLossy{
    0x52, 0x49, 0x46, 0x46, 0x90, 0x00, 0x00, 0x00, 0x57, 0x45, 0x42, 0x50, 0x56, 0x50, 0x38, 0x20,
    0x84, 0x00, 0x00, 0x00, 0x70, 0x02, 0x00, 0x9D, 0x01, 0x2A, 0x10, 0x00, 0x0C, 0x00, 0x02, 0xC0,
    0x4C, 0x25, 0xB0, 0x02, 0x74, 0x30, 0x49, 0x88, 0x86, 0x09, 0x40, 0x9B, 0x55, 0xDD, 0x73, 0xF0,
    0x00, 0xFE, 0xDD, 0xAB, 0xCC, 0x08, 0x8F, 0xAB, 0xB2, 0xA1, 0x34, 0x7B, 0xC8, 0x9E, 0x05, 0xC7,
    0x37, 0x77, 0xE5, 0xF5, 0x42, 0xD0, 0xD9, 0x1E, 0x55, 0x55, 0xF8, 0x75, 0xCF, 0xAC, 0x5C, 0xEB,
    0xD4, 0xB9, 0xC7, 0x15, 0x3D, 0x38, 0xA3, 0x79, 0x57, 0x0E, 0xEC, 0x91, 0xED, 0x5D, 0x4B, 0x98,
    0x53, 0xCE, 0x51, 0x6F, 0x98, 0x26, 0xEF, 0xED, 0x0E, 0xF2, 0xFF, 0xD5, 0x0E, 0x3F, 0xD7, 0xFC,
    0x7D, 0xFB, 0xE9, 0x64, 0x6A, 0xE7, 0x7F, 0xFF, 0x9C, 0xB6, 0x57, 0x58, 0x5D, 0xBF, 0xA8, 0x05,
    0x86, 0x25, 0xFD, 0x0A, 0xA3, 0xF8, 0x26, 0xA8, 0x7B, 0x0D, 0x0F, 0xB7, 0x1B, 0xE6, 0x71, 0xD4,
    0xFC, 0xDF, 0xFE, 0x6B, 0x28, 0x00, 0x00, 0x00};

TEST(Webp, LosslessPixelsComeBack) {
  const data::Image image = webp_decoded(lossless(3));
  EXPECT_EQ(image.height, kHeight);
  EXPECT_EQ(image.width, kWidth);
  EXPECT_EQ(image.pixels, webp_pixels(3));
  const data::ImageSize size = data::photo_size(lossless(3));
  EXPECT_EQ(size.height, kHeight);
  EXPECT_EQ(size.width, kWidth);
}

TEST(Webp, AlphaLeavesTheColourBeneath) {
  const Bytes pixels = webp_pixels(4), got = webp_decoded(lossless(4)).pixels;
  ASSERT_EQ(got.size(), pixels.size() / 4 * 3);
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (pixels[i / 3 * 4 + 3] == 0) continue;  // The encoder chooses colours that are not seen.
    ASSERT_EQ(got[i], pixels[i / 3 * 4 + i % 3]) << i;
  }
}

TEST(Webp, LossyPixelsAreThoseOfPillow) {
  const data::Image image = webp_decoded(kLossy);
  EXPECT_EQ(image.pixels.size(), 16U * 12 * 3);
  EXPECT_EQ(crc32_z(0, image.pixels.data(), image.pixels.size()), 0x68916EEAU);
}

TEST(WebpFaults, AFileThatEndsEarlyIsRefused) {
  for (const Bytes& whole : {lossless(3), kLossy}) {
    for (std::size_t size = 12; size + 1 < whole.size(); ++size) {
      const Bytes part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
      EXPECT_NE(webp_complaint(part), "") << size << " of " << whole.size() << " bytes";
    }
    EXPECT_EQ(webp_complaint(whole), "");
  }
}

TEST(WebpFaults, FlippedBytesNeverCrash) {
  int refused = 0;
  for (const Bytes& whole : {lossless(3), kLossy})
    for (std::size_t i = 12; i < whole.size(); ++i) {
      Bytes bad = whole;
      bad[i] ^= 0x55U;
      refused += webp_complaint(bad, {.max_pixels = 10'000}).empty() ? 0 : 1;
    }
  EXPECT_GT(refused, 0);  // Others differ in pixels alone.
}

TEST(WebpFaults, TooManyPixelsAndAnimationsAreRefused) {
  EXPECT_NE(webp_complaint(lossless(3), {.max_pixels = 246}).find("limit"), std::string::npos);
  EXPECT_EQ(webp_complaint(lossless(3), {.max_pixels = 247}), "");
  // The header of an extended file with the flag of an animation.
  Bytes file{'R', 'I', 'F', 'F', 22, 0, 0, 0, 'W', 'E', 'B', 'P', 'V', 'P', '8',
             'X', 10,  0,   0,   0,  2, 0, 0, 0,   15,  0,   0,   11,  0,   0};
  EXPECT_NE(webp_complaint(file).find("animation"), std::string::npos) << webp_complaint(file);
}

}  // namespace
}  // namespace dkfac::testing
