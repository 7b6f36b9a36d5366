// JPEG files that libjpeg warns of.

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/data/image.h"

#include "data/jpeg_files.h"

namespace dkfac::testing {
namespace {

constexpr std::uint8_t kApp0 = 0xE0, kApp14 = 0xEE, kScan = 0xDA, kEnd = 0xD9;

Bytes pixels_of(const Bytes& file, const data::DecodeOptions& options = {}) {
  data::Image image;
  data::decode_photo(file, options, image);
  return image.pixels;
}

/// The error of a file, else empty.
std::string refusal(const Bytes& file) {
  try {
    (void)pixels_of(file);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

/// Place of the n-th marker of a kind, which the bytes of a scan cannot contain; of the first byte,
/// FF.
std::ptrdiff_t marker(const Bytes& file, std::uint8_t kind, int n = 1) {
  for (std::size_t i = 0; i + 1 < file.size(); ++i)
    if (file[i] == 0xFF && file[i + 1] == kind && --n == 0) return static_cast<std::ptrdiff_t>(i);
  ADD_FAILURE() << "no marker " << int{kind};
  return 0;
}

Bytes with(Bytes file, std::ptrdiff_t place, const Bytes& inserted) {
  file.insert(file.begin() + place, inserted.begin(), inserted.end());
  return file;
}

Bytes without_segment(Bytes file, std::uint8_t kind) {
  const auto at = file.begin() + marker(file, kind);
  file.erase(at, at + 2 + at[2] * 256 + at[3]);
  return file;
}

Bytes adobe_segment(std::uint8_t transform) {
  return {0xFF, kApp14, 0, 14, 'A', 'd', 'o', 'b', 'e', 0, 100, 0, 0, 0, 0, transform};
}

struct Kind {
  std::string_view name;
  JpegFile file;
};

std::vector<Kind> kinds_of_files() {
  return {{"baseline", {.height = 61, .width = 83}},
          {"progressive", {.height = 61, .width = 83, .progressive = true}},
          {"2x2", {.height = 61, .width = 83, .across = 2, .down = 2}},
          {"grey", {.height = 61, .width = 83, .channels = 1, .colors = JCS_GRAYSCALE}}};
}

/// Expects the pixels of another file, at all ways to decode.
void expect_same(const Bytes& odd, const Bytes& plain, const std::string& what) {
  EXPECT_EQ(refusal(odd), "") << what;
  const data::ImageSize a = data::photo_size(odd), b = data::photo_size(plain);
  EXPECT_EQ(a.height, b.height) << what;
  EXPECT_EQ(a.width, b.width) << what;
  const data::DecodeOptions half{.enough_height = 30, .enough_width = 40};
  EXPECT_EQ(pixels_of(odd), pixels_of(plain)) << what;
  EXPECT_EQ(pixels_of(odd, half), pixels_of(plain, half)) << what;
  EXPECT_EQ(refusal(odd), "") << what;
}

TEST(JpegWarnings, OddRevisionsOfJfifAreNoDamage) {
  for (const auto& [name, file] : kinds_of_files()) {
    const Bytes plain = encode_jpeg(file);
    for (const auto& [major, minor] : {std::pair{0, 0}, {2, 1}, {255, 255}}) {
      Bytes odd = plain;
      const auto revision = static_cast<std::size_t>(marker(odd, kApp0) + 9);
      odd[revision] = static_cast<std::uint8_t>(major);
      odd[revision + 1] = static_cast<std::uint8_t>(minor);
      expect_same(odd, plain, std::string(name) + " " + std::to_string(major));
    }
  }
}

TEST(JpegWarnings, BytesBetweenSegmentsAreNoDamage) {
  for (const auto& [name, file] : kinds_of_files()) {
    const Bytes plain = encode_jpeg(file);
    for (const Bytes& junk : {Bytes(1, 0), Bytes(512, 0), Bytes{1, 2, 3}, Bytes(4000, 0x55)}) {
      const std::string what = std::string(name) + ", bytes " + std::to_string(junk.size());
      expect_same(with(plain, marker(plain, kEnd), junk), plain, what + " before the end");
      expect_same(with(plain, marker(plain, kScan), junk), plain, what + " before a scan");
      expect_same(with(plain, marker(plain, 0xDB), junk), plain, what + " before a table");
      if (file.progressive)
        expect_same(with(plain, marker(plain, kScan, 2), junk), plain, what + " between scans");
    }
  }
}

TEST(JpegWarnings, ParametersThatASequentialScanDoesNotHaveAreNoDamage) {
  for (const auto& [name, file] : kinds_of_files()) {
    if (file.progressive) continue;
    const Bytes plain = encode_jpeg(file);
    for (const int byte : {0, 1, 2}) {  // Ss, Se, Ah and Al.
      Bytes odd = plain;
      const auto scan = static_cast<std::size_t>(marker(odd, kScan));
      odd[scan + 5 + 2 * odd[scan + 4] + static_cast<std::size_t>(byte)] = 17;
      expect_same(odd, plain, std::string(name) + ", parameter " + std::to_string(byte));
    }
  }
}

TEST(JpegWarnings, AnUnknownTransformOfAdobeIsTheUsualOne) {
  const Bytes named = encode_jpeg({.height = 61, .width = 83});
  const Bytes bare = without_segment(named, kApp0);
  const Bytes usual = with(bare, 2, adobe_segment(1)), none = with(bare, 2, adobe_segment(0));
  expect_same(with(bare, 2, adobe_segment(9)), usual, "RGB");
  EXPECT_NE(pixels_of(usual), pixels_of(none)) << "the segment has an effect";
  const Bytes inks = encode_jpeg({.height = 61, .width = 83, .channels = 4, .colors = JCS_CMYK});
  const Bytes raw = without_segment(inks, kApp14);
  expect_same(with(raw, 2, adobe_segment(9)), with(raw, 2, adobe_segment(2)), "CMYK");
}

TEST(JpegWarnings, DataThatMayBeMissingStayDamage) {
  const Bytes plain = encode_jpeg({.height = 61, .width = 83});
  const Bytes progressive = encode_jpeg({.height = 61, .width = 83, .progressive = true});
  const auto scan = marker(plain, kScan);
  Bytes cut(plain.begin(), plain.end() - 40);  // JWRN_JPEG_EOF and JWRN_HIT_MARKER.
  EXPECT_NE(refusal(cut).find("Premature end"), std::string::npos) << refusal(cut);
  cut.insert(cut.end(), {0xFF, kEnd});
  EXPECT_NE(refusal(cut).find("premature end"), std::string::npos) << refusal(cut);
  const Bytes no_end(plain.begin(), plain.end() - 2);
  EXPECT_NE(refusal(no_end).find("Premature end"), std::string::npos) << refusal(no_end);
  Bytes codes = plain;  // JWRN_HUFF_BAD_CODE: a code of ones alone is none.
  for (auto at = codes.begin() + scan + 30; at < codes.end() - 60; at += 2) at[0] = 0xFF, at[1] = 0;
  EXPECT_NE(refusal(codes).find("bad Huffman code"), std::string::npos) << refusal(codes);
  Bytes lost = progressive;  // JWRN_BOGUS_PROGRESSION: the first scan is missing.
  lost.erase(lost.begin() + marker(lost, kScan), lost.begin() + marker(lost, kScan, 2));
  EXPECT_NE(refusal(lost).find("progression"), std::string::npos) << refusal(lost);
  // JWRN_MUST_RESYNC: another restart marker than the next one.
  Bytes restarts = encode_jpeg({.height = 61, .width = 83, .restart_rows = 1});
  EXPECT_EQ(refusal(restarts), "");
  restarts[static_cast<std::size_t>(marker(restarts, 0xD1)) + 1] = 0xD5;
  EXPECT_NE(refusal(restarts).find("instead of RST"), std::string::npos) << refusal(restarts);
}

}  // namespace
}  // namespace dkfac::testing
