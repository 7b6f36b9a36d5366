#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace dkfac::data {

/// A picture in memory of somebody else: 8-bit RGB, [height,width,3].
struct ImageView {
  std::int64_t height = 0, width = 0;
  const std::uint8_t* pixels = nullptr;
};

/// The same in memory of its own.
struct Image {
  std::int64_t height = 0, width = 0;
  std::vector<std::uint8_t> pixels{};
  // NOLINTNEXTLINE(google-explicit-constructor): an image is viewed wherever a view is read.
  operator ImageView() const { return {height, width, pixels.data()}; }
};

/// A part of a picture.
struct Box {
  std::int64_t y = 0, x = 0, height = 0, width = 0;
};

/// What a file may cost, and how small a picture will do.
struct DecodeOptions {
  /// Pictures of more pixels are refused before memory is taken for them.
  std::int64_t max_pixels = std::int64_t{64} << 20;
  /// Progressive files of more scans are refused: each costs a pass over the whole picture.
  int max_scans = 500;
  /// What is to be resized to this much anyway may be decoded at 1/2, 1/4 or 1/8 of its size (the
  /// inverse DCT is scaled), as long as no side becomes shorter than this. 0: in full.
  std::int64_t enough_height = 0, enough_width = 0;
  /// Only these pixels are wanted (of the picture in full): others may be anything, and the inverse
  /// DCT is not computed for most of them. A file is refused for damage anywhere all the same.
  /// height 0: all.
  Box region{};
};

/// Size of a picture by its header.
struct ImageSize {
  std::int64_t height = 0, width = 0;
};

/// The size that a JPEG file promises, without decoding it. Throws DataError as decode_jpeg().
[[nodiscard]] ImageSize jpeg_size(std::span<const std::uint8_t> file);

/// Decodes a JPEG file to RGB: grey ones get three equal channels, CMYK and YCCK ones are converted
/// as Pillow does. Integer DCT and smooth upsampling, libjpeg's defaults, so that the pixels are
/// those of Pillow and torchvision. Writes to `out`, whose memory is used again. Throws DataError
/// that says what is wrong: an empty file, another format (by its magic), a header without a
/// picture, too many pixels or scans, and whatever libjpeg warns of, e.g. a file that ends early.
void decode_jpeg(std::span<const std::uint8_t> file, const DecodeOptions& options, Image& out);

/// A part of a picture in parts of pixels.
struct Area {
  double y = 0, x = 0, height = 0, width = 0;
};

/// Resizes pixels of `box` to [height,width,3] by Pillow's bilinear filter: a triangle whose
/// support grows with the reduction (antialiasing), rows first, in the fixed-point arithmetic of
/// Pillow, so that results are equal to the last bit. Pixels outside of the box are not looked at,
/// as after a crop. `scratch` is memory that is used again. Throws InvalidArgument for a box that
/// is not inside, or sizes below 1.
void resize_bilinear(const ImageView& image, const Box& box, std::int64_t height,
                     std::int64_t width, std::uint8_t* out, std::vector<std::uint8_t>& scratch);
/// Only `window` of that result, at the price of what goes into it: out[window.height,
/// window.width,3], the same bits.
void resize_bilinear(const ImageView& image, const Box& box, std::int64_t height,
                     std::int64_t width, const Box& window, std::uint8_t* out,
                     std::vector<std::uint8_t>& scratch);
/// Of an area that begins or ends within pixels, as of a picture that was decoded at a part of its
/// size. Pixels that no part of it lies on are not looked at.
void resize_bilinear(const ImageView& image, const Area& area, std::int64_t height,
                     std::int64_t width, const Box& window, std::uint8_t* out,
                     std::vector<std::uint8_t>& scratch);

}  // namespace dkfac::data
