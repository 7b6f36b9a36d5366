#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdio>
#include <jerror.h>
#include <jpeglib.h>
#include <utility>

#include "dkfac/core/error.h"
#include "dkfac/data/image.h"

#include "data/photo_format.h"

namespace dkfac::data {
namespace {

/// State of libjpeg, with error handlers that longjmp() back here instead of ending the process. No
/// object with a destructor may live between setjmp() and the jump.
struct Decoder {
  jpeg_decompress_struct info;
  jpeg_error_mgr errors;
  jpeg_progress_mgr progress;
  std::jmp_buf back;
  int max_scans;
  std::array<char, JMSG_LENGTH_MAX> message;
};

void fail(Decoder& decoder, const char* why) {
  std::snprintf(decoder.message.data(), decoder.message.size(), "%s", why);
  std::longjmp(decoder.back, 1);
}

Decoder& of(j_common_ptr info) { return *static_cast<Decoder*>(info->client_data); }

/// Whether the picture is complete in spite of a warning: what is odd is beside its data, which the
/// decoder does not need. After the other warnings (JWRN_HIT_MARKER, JWRN_JPEG_EOF,
/// JWRN_HUFF_BAD_CODE, JWRN_ARITH_BAD_CODE, JWRN_MUST_RESYNC: data are missing or damaged;
/// JWRN_BOGUS_PROGRESSION: a scan is missing) other decoders continue with grey or blurred areas.
bool has_every_pixel(int warning) {
  return warning == JWRN_JFIF_MAJOR || warning == JWRN_ADOBE_XFORM ||
         warning == JWRN_EXTRANEOUS_DATA || warning == JWRN_NOT_SEQUENTIAL;
}

extern "C" {

static void on_error(j_common_ptr info) {
  Decoder& decoder = of(info);
  info->err->format_message(info, decoder.message.data());
  std::longjmp(decoder.back, 1);
}

// A level below 0 is a warning; others are traces.
static void on_message(j_common_ptr info, int level) {
  if (level < 0 && !has_every_pixel(info->err->msg_code)) on_error(info);
}

static void on_progress(j_common_ptr info) {
  Decoder& decoder = of(info);
  if (decoder.info.input_scan_number > decoder.max_scans) fail(decoder, "too many scans");
}
}

/// Calls work(decoder) between creation and destruction of libjpeg's state. A longjmp() may leave
/// `work`, so it must not own anything. Returns false in that case, with the reason in
/// decoder.message.
template <class Work>
bool with_decoder(Decoder& decoder, std::span<const std::uint8_t> file, int max_scans, Work work) {
  decoder.info.err = jpeg_std_error(&decoder.errors);
  decoder.errors.error_exit = on_error;
  decoder.errors.emit_message = on_message;
  decoder.max_scans = max_scans;
  decoder.message[0] = '\0';
  decoder.info.client_data = &decoder;
  if (setjmp(decoder.back) != 0) {
    jpeg_destroy_decompress(&decoder.info);
    return false;
  }
  jpeg_create_decompress(&decoder.info);
  decoder.info.client_data = &decoder;
  decoder.progress = {};
  decoder.progress.progress_monitor = on_progress;
  decoder.info.progress = &decoder.progress;
  jpeg_mem_src(&decoder.info, file.data(), static_cast<unsigned long>(file.size()));
  jpeg_read_header(&decoder.info, TRUE);
  work(decoder);
  jpeg_destroy_decompress(&decoder.info);
  return true;
}

[[noreturn]] void refuse(const Decoder& decoder) {
  throw DataError(detail::concat("[decode_jpeg] ", decoder.message.data()));
}

/// Whether libjpeg-turbo can decode parts of the picture, and at reduced size. Where more than two
/// rows or columns share a colour, 2.1 gives wrong pixels, reports damage, or never returns.
bool can_be_cut(const jpeg_decompress_struct& info) {
  return info.max_h_samp_factor <= 2 && info.max_v_samp_factor <= 2;
}

/// Returns the largest reduction of the inverse DCT that still gives the sufficient size.
unsigned reduction(const jpeg_decompress_struct& info, const DecodeOptions& options) {
  if (options.enough_height <= 0 || options.enough_width <= 0 || !can_be_cut(info)) return 1;
  for (unsigned by = 8; by > 1; by /= 2) {
    if ((info.image_height + by - 1) / by >= static_cast<std::uint64_t>(options.enough_height) &&
        (info.image_width + by - 1) / by >= static_cast<std::uint64_t>(options.enough_width))
      return by;
  }
  return 1;
}

bool has_four_channels(const jpeg_decompress_struct& info) {
  return info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
}

/// Converts a row of CMYK to RGB with Pillow's rounding. Adobe's programs write inverted inks, so
/// 255 means no ink; like Pillow, it assumes this of every file.
void ink_to_light(const std::uint8_t* cmyk, std::int64_t width, std::uint8_t* rgb) {
  for (std::int64_t x = 0; x < width; ++x, cmyk += 4, rgb += 3) {
    const unsigned light = cmyk[3];
    for (int c = 0; c < 3; ++c) {
      const unsigned product = (255U - cmyk[c]) * light + 128;
      rgb[c] = static_cast<std::uint8_t>(light - (((product >> 8U) + product) >> 8U));
    }
  }
}

/// Returns the rows and columns of the output to decode: the required ones and a margin, because
/// upsampling reads neighbouring pixels.
Box rows_and_columns(const jpeg_decompress_struct& info, const Box& region) {
  const std::int64_t height = info.output_height, width = info.output_width;
  if (region.height <= 0 || !can_be_cut(info)) return {0, 0, height, width};
  constexpr std::int64_t kMargin = 32;  // At least one row of the largest blocks on each side.
  const auto span = [](std::int64_t begin, std::int64_t length, std::int64_t whole,
                       std::int64_t out) {
    const std::int64_t first = begin * out / whole - kMargin;
    const std::int64_t end = ((begin + length) * out + whole - 1) / whole + kMargin;
    return std::pair{std::max<std::int64_t>(first, 0), std::min(end, out)};
  };
  const auto [top, bottom] = span(region.y, region.height, info.image_height, height);
  const auto [left, right] = span(region.x, region.width, info.image_width, width);
  return {top, left, bottom - top, right - left};
}

/// Decodes the box of a started picture to its position in `pixels`. Rows of four channels are
/// decoded into `row` first.
void read_box(jpeg_decompress_struct& info, const Box& box, std::int64_t stride, bool inks,
              std::uint8_t* row, std::uint8_t* pixels) {
  const JDIMENSION height = info.output_height;
  JDIMENSION left = static_cast<JDIMENSION>(box.x), width = static_cast<JDIMENSION>(box.width);
  if (width < info.output_width)
    jpeg_crop_scanline(&info, &left, &width);
  else
    left = 0;
  if (box.y > 0) jpeg_skip_scanlines(&info, static_cast<JDIMENSION>(box.y));
  pixels += 3 * (box.y * stride + left);
  for (std::int64_t y = 0; y < box.height; ++y, pixels += 3 * stride) {
    JSAMPROW to = inks ? row : pixels;
    jpeg_read_scanlines(&info, &to, 1);
    if (inks) ink_to_light(row, width, pixels);
  }
  // Read the remaining rows to detect damage in them, which skipping to the very end would not.
  if (info.output_scanline == height) return;
  if (info.output_scanline + 1 < height)
    jpeg_skip_scanlines(&info, height - 1 - info.output_scanline);
  JSAMPROW to = row;
  jpeg_read_scanlines(&info, &to, 1);
}

}  // namespace

bool have_jpeg() { return true; }

ImageSize jpeg_size(std::span<const std::uint8_t> file) {
  require_format(file, PhotoFormat::jpeg, "decode_jpeg");
  Decoder decoder;
  ImageSize size;
  if (!with_decoder(decoder, file, 1, [&size](Decoder& d) {
        size = {d.info.image_height, d.info.image_width};
      }))
    refuse(decoder);
  return size;
}

void decode_jpeg(std::span<const std::uint8_t> file, const DecodeOptions& options, Image& out) {
  const ImageSize whole = jpeg_size(file);
  check_pixels(whole, options, "decode_jpeg");
  Decoder decoder;
  // All memory is allocated before libjpeg runs, so a longjmp() does not leak it.
  std::vector<std::uint8_t> row(4 * static_cast<std::size_t>(whole.width));
  out.pixels.resize(3 * static_cast<std::size_t>(whole.height * whole.width));
  const bool good = with_decoder(decoder, file, options.max_scans, [&](Decoder& d) {
    jpeg_decompress_struct& info = d.info;
    info.scale_num = 1;
    info.scale_denom = reduction(info, options);
    const bool inks = has_four_channels(info);
    info.out_color_space = inks ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(&info);
    out.height = info.output_height;
    out.width = info.output_width;
    read_box(info, rows_and_columns(info, options.region), out.width, inks, row.data(),
             out.pixels.data());
    jpeg_finish_decompress(&info);
  });
  if (!good) refuse(decoder);
  out.pixels.resize(3 * static_cast<std::size_t>(out.height * out.width));
}

}  // namespace dkfac::data
