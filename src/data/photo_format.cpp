#include "data/photo_format.h"

#include <algorithm>
#include <cstring>

#include "dkfac/core/error.h"

namespace dkfac::data {
namespace {

bool holds_at(std::span<const std::uint8_t> file, std::size_t place, std::string_view text) {
  return file.size() >= place + text.size() &&
         std::memcmp(file.data() + place, text.data(), text.size()) == 0;
}

std::string_view name_of(std::span<const std::uint8_t> file) {
  switch (format_of(file)) {
    case PhotoFormat::jpeg:
      return "a JPEG file";
    case PhotoFormat::png:
      return "a PNG file";
    case PhotoFormat::webp:
      return "a WebP file";
    case PhotoFormat::other:
      break;
  }
  if (holds_at(file, 0, "GIF8")) return "a GIF file";
  if (holds_at(file, 0, "BM")) return "a BMP file";
  if (holds_at(file, 0, "II*") || holds_at(file, 0, "MM")) return "a TIFF file";
  if (holds_at(file, 4, "ftyp")) return "a HEIF, AVIF or MP4 file";
  return "no photograph";
}

}  // namespace

PhotoFormat format_of(std::span<const std::uint8_t> file) {
  if (holds_at(file, 0, "\xFF\xD8\xFF")) return PhotoFormat::jpeg;
  if (holds_at(file, 0, "\x89PNG")) return PhotoFormat::png;
  if (holds_at(file, 0, "RIFF") && holds_at(file, 8, "WEBP")) return PhotoFormat::webp;
  return PhotoFormat::other;
}

PhotoFormat format_of_name(const std::filesystem::path& name) {
  std::string ending = name.extension().string();
  std::ranges::transform(ending, ending.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  if (ending == ".jpg" || ending == ".jpeg") return PhotoFormat::jpeg;
  if (ending == ".png") return PhotoFormat::png;
  if (ending == ".webp") return PhotoFormat::webp;
  return PhotoFormat::other;
}

bool can_decode(PhotoFormat format) {
  return (format == PhotoFormat::jpeg && have_jpeg()) ||
         (format == PhotoFormat::png && have_png()) || (format == PhotoFormat::webp && have_webp());
}

std::string readable_formats() {
  std::string read, absent;
  const auto add = [&](bool have, const char* name, const char* library) {
    if (have)
      read += detail::concat(read.empty() ? "" : ", ", name);
    else
      absent += detail::concat("; ", name, " needs a build with ", library);
  };
  add(have_jpeg(), "JPEG", "libjpeg-turbo");
  add(have_png(), "PNG", "libpng");
  add(have_webp(), "WebP", "libwebp");
  return (read.empty() ? "none" : read) + absent;
}

void require_format(std::span<const std::uint8_t> file, PhotoFormat format,
                    std::string_view function) {
  if (file.empty()) throw DataError(detail::concat("[", function, "] the file is empty"));
  if (format_of(file) != format)
    throw DataError(detail::concat("[", function, "] this is ", name_of(file)));
}

void check_pixels(const ImageSize& size, const DecodeOptions& options, std::string_view function) {
  if (size.height <= options.max_pixels / std::max<std::int64_t>(size.width, 1)) return;
  throw DataError(detail::concat("[", function, "] the picture has ", size.height, " x ",
                                 size.width, " pixels, and ", options.max_pixels,
                                 " are the limit"));
}

ImageSize photo_size(std::span<const std::uint8_t> file) {
  const PhotoFormat format = format_of(file);
  if (format == PhotoFormat::png) return png_size(file);
  if (format == PhotoFormat::webp) return webp_size(file);
  return jpeg_size(file);  // It says what a file of no such format is.
}

void decode_photo(std::span<const std::uint8_t> file, const DecodeOptions& options, Image& out) {
  const PhotoFormat format = format_of(file);
  if (format == PhotoFormat::png) return decode_png(file, options, out);
  if (format == PhotoFormat::webp) return decode_webp(file, options, out);
  decode_jpeg(file, options, out);
}

}  // namespace dkfac::data
