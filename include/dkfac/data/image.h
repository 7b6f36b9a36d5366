#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace dkfac::data {

/// Non-owning view of a picture: 8-bit RGB, [height,width,3].
struct ImageView {
  std::int64_t height = 0, width = 0;
  const std::uint8_t* pixels = nullptr;
};

/// Owning picture: 8-bit RGB, [height,width,3].
struct Image {
  std::int64_t height = 0, width = 0;
  std::vector<std::uint8_t> pixels{};
  // NOLINTNEXTLINE(google-explicit-constructor): an image is viewed wherever a view is read.
  operator ImageView() const { return {height, width, pixels.data()}; }
};

/// Rectangle of whole pixels in a picture.
struct Box {
  std::int64_t y = 0, x = 0, height = 0, width = 0;
};

/// Limits on the cost of a file, and the size and region that the decoder must produce.
struct DecodeOptions {
  /// Pictures with more pixels are refused before memory is allocated for them.
  std::int64_t max_pixels = std::int64_t{64} << 20;
  /// Progressive files with more scans are refused: each costs a pass over the whole picture.
  int max_scans = 500;
  /// Size that is sufficient for a later resize: the picture may be decoded at 1/2, 1/4 or 1/8 of
  /// its size (by a scaled inverse DCT) as long as no side becomes shorter than this. 0: full size.
  std::int64_t enough_height = 0, enough_width = 0;
  /// Required region, in pixels of the full picture. Other pixels are unspecified, and the inverse
  /// DCT is not computed for most of them. A file damaged anywhere is still refused. height 0: all.
  Box region{};
};

/// Size of a picture in pixels.
struct ImageSize {
  std::int64_t height = 0, width = 0;
};

/// Reads the size in the header of a JPEG file without decoding it. Throws DataError as
/// decode_jpeg().
[[nodiscard]] ImageSize jpeg_size(std::span<const std::uint8_t> file);

/// Decodes a JPEG file to RGB. Grey pictures get three equal channels; CMYK and YCCK are converted
/// as Pillow does. It uses libjpeg's defaults, integer DCT and smooth upsampling, so the pixels
/// equal those of Pillow and torchvision. Writes to `out`, whose memory is reused.
///
/// Throws DataError with the cause: an empty file, another format (by its magic), a header without
/// a picture, too many pixels or scans, and warnings of libjpeg after which pixels may be missing,
/// e.g. of a file that ends early. What it warns of elsewhere (JFIF revision, Adobe's transform,
/// bytes between segments, parameters without use) is no fault.
void decode_jpeg(std::span<const std::uint8_t> file, const DecodeOptions& options, Image& out);

/// Reads the size of a photograph, a JPEG, PNG or WebP file by its first bytes. Throws DataError as
/// decode_photo().
[[nodiscard]] ImageSize photo_size(std::span<const std::uint8_t> file);

/// Decodes a JPEG (decode_jpeg()), PNG or WebP file to the RGB pixels of Pillow's convert("RGB").
/// Alpha is left out: a transparent pixel gets the colour that the file has for it. Of 16-bit
/// channels the high byte is taken, but 16-bit grey values are cut off at 255, as Pillow does;
/// profiles and gamma are not applied. PNG and WebP files are decoded as a whole.
///
/// Throws DataError as decode_jpeg(), for PNG on a wrong checksum, for WebP on an animation, and
/// for a format whose library the build does not have.
void decode_photo(std::span<const std::uint8_t> file, const DecodeOptions& options, Image& out);

/// Rectangle in a picture in fractional pixels.
struct Area {
  double y = 0, x = 0, height = 0, width = 0;
};

/// Resizes the pixels of `box` to [height,width,3] by Pillow's bilinear filter: a triangle whose
/// support grows with the reduction (antialiasing), rows first. It uses Pillow's fixed-point
/// arithmetic, so results are bit-identical. Pixels outside the box are not read, as after a crop.
/// `scratch` is reusable memory. Throws InvalidArgument for a box outside the image, or sizes
/// below 1.
void resize_bilinear(const ImageView& image, const Box& box, std::int64_t height,
                     std::int64_t width, std::uint8_t* out, std::vector<std::uint8_t>& scratch);
/// Computes only `window` of that result, bit-identically and at the cost of its own inputs:
/// out[window.height,window.width,3].
void resize_bilinear(const ImageView& image, const Box& box, std::int64_t height,
                     std::int64_t width, const Box& window, std::uint8_t* out,
                     std::vector<std::uint8_t>& scratch);
/// Resizes an area with fractional borders, e.g. of a picture decoded at reduced size. Pixels
/// entirely outside the area are not read.
void resize_bilinear(const ImageView& image, const Area& area, std::int64_t height,
                     std::int64_t width, const Box& window, std::uint8_t* out,
                     std::vector<std::uint8_t>& scratch);

}  // namespace dkfac::data
