#include <array>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <png.h>
#include <utility>

#include "dkfac/core/error.h"

#include "data/photo_format.h"

namespace dkfac::data {
namespace {

/// State of libpng, whose errors longjmp() back here. No object with a destructor may live between
/// setjmp() and the jump.
struct PngReader {
  std::span<const std::uint8_t> rest;
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::jmp_buf back;
  std::array<char, 200> message{};
};

extern "C" {

static void on_png_error(png_structp png, png_const_charp why) {
  auto& reader = *static_cast<PngReader*>(png_get_error_ptr(png));
  std::snprintf(reader.message.data(), reader.message.size(), "%s", why);
  std::longjmp(reader.back, 1);
}

// After a warning every pixel is there; it concerns profiles and texts, most of all.
static void on_png_warning(png_structp, png_const_charp) {}

static void read_png_bytes(png_structp png, png_bytep to, std::size_t count) {
  auto& reader = *static_cast<PngReader*>(png_get_io_ptr(png));
  if (count > reader.rest.size()) png_error(png, "the file ends early");
  std::memcpy(to, reader.rest.data(), count);
  reader.rest = reader.rest.subspan(count);
}
}

/// Calls work(reader) with the header read. A longjmp() may leave `work`, so it must not own
/// anything. Throws DataError with libpng's reason.
template <class Work>
void with_png(std::span<const std::uint8_t> file, Work work) {
  PngReader reader;
  reader.rest = file;
  reader.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &reader, on_png_error, on_png_warning);
  if (reader.png == nullptr)
    throw DataError("[decode_png] libpng cannot start; is its header of another version?");
  bool good = false;
  if (setjmp(reader.back) == 0) {
    reader.info = png_create_info_struct(reader.png);
    if (reader.info == nullptr) png_error(reader.png, "out of memory");
    png_set_read_fn(reader.png, &reader, read_png_bytes);
    png_set_crc_action(reader.png, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
    // Profiles, gamma and texts, which Pillow does not apply to pixels, are not even parsed.
    png_set_keep_unknown_chunks(reader.png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
    png_read_info(reader.png, reader.info);
    work(reader);
    good = true;
  }
  png_destroy_read_struct(&reader.png, &reader.info, nullptr);
  if (!good) throw DataError(detail::concat("[decode_png] ", reader.message.data()));
}

bool is_deep_grey(const PngReader& reader) {
  return png_get_bit_depth(reader.png, reader.info) == 16 &&
         png_get_color_type(reader.png, reader.info) == PNG_COLOR_TYPE_GRAY;
}

/// Makes rows of 8-bit RGB of all kinds of pixels but 16-bit grey ones, of which it makes rows of
/// two bytes.
void choose_rgb(const PngReader& reader) {
  png_structp png = reader.png;
  png_set_strip_alpha(png);  // Also of a palette, and of a transparent colour.
  if (is_deep_grey(reader)) return;
  png_set_strip_16(png);
  png_set_palette_to_rgb(png);
  png_set_expand_gray_1_2_4_to_8(png);
  png_set_gray_to_rgb(png);
}

/// Widens a row of 16-bit grey values in place, from its end. Like Pillow, it cuts them off at 255.
void widen_grey(std::uint8_t* row, std::int64_t width) {
  for (std::int64_t x = width - 1; x >= 0; --x) {
    const std::uint8_t grey = row[2 * x] != 0 ? 255 : row[2 * x + 1];
    row[3 * x] = row[3 * x + 1] = row[3 * x + 2] = grey;
  }
}

void read_png_rows(const PngReader& reader, const ImageSize& size, std::uint8_t* pixels) {
  const std::int64_t stride = 3 * size.width;
  choose_rgb(reader);
  const int passes = png_set_interlace_handling(reader.png);
  png_read_update_info(reader.png, reader.info);
  if (png_get_rowbytes(reader.png, reader.info) > static_cast<std::size_t>(stride))
    png_error(reader.png, "its rows are longer than those of RGB");
  for (int pass = 0; pass < passes; ++pass)
    for (std::int64_t y = 0; y < size.height; ++y)
      png_read_row(reader.png, pixels + y * stride, nullptr);
  png_read_end(reader.png, nullptr);  // Checks the sums of what follows.
  if (!is_deep_grey(reader)) return;
  for (std::int64_t y = 0; y < size.height; ++y) widen_grey(pixels + y * stride, size.width);
}

}  // namespace

bool have_png() { return true; }

ImageSize png_size(std::span<const std::uint8_t> file) {
  ImageSize size;
  with_png(file, [&size](const PngReader& reader) {
    size = {png_get_image_height(reader.png, reader.info),
            png_get_image_width(reader.png, reader.info)};
  });
  return size;
}

void decode_png(std::span<const std::uint8_t> file, const DecodeOptions& options, Image& out) {
  const ImageSize size = png_size(file);
  check_pixels(size, options, "decode_png");
  out.height = size.height;
  out.width = size.width;
  // All memory is allocated before libpng runs, so a longjmp() does not leak it.
  out.pixels.resize(3 * static_cast<std::size_t>(size.height * size.width));
  with_png(file, [&](const PngReader& reader) { read_png_rows(reader, size, out.pixels.data()); });
}

}  // namespace dkfac::data
