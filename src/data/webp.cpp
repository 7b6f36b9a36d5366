#include <webp/decode.h>

#include "dkfac/core/error.h"

#include "data/photo_format.h"

namespace dkfac::data {
namespace {

const char* reason_of(VP8StatusCode status) {
  switch (status) {
    case VP8_STATUS_OUT_OF_MEMORY:
      return "out of memory";
    case VP8_STATUS_UNSUPPORTED_FEATURE:
      return "it uses a feature that libwebp does not support";
    case VP8_STATUS_SUSPENDED:
    case VP8_STATUS_NOT_ENOUGH_DATA:
      return "the file ends early";
    default:
      return "its data are damaged";
  }
}

[[noreturn]] void refuse_webp(const char* why) {
  throw DataError(detail::concat("[decode_webp] ", why));
}

}  // namespace

bool have_webp() { return true; }

ImageSize webp_size(std::span<const std::uint8_t> file) {
  WebPBitstreamFeatures features;
  const VP8StatusCode status = WebPGetFeatures(file.data(), file.size(), &features);
  if (status != VP8_STATUS_OK) refuse_webp(reason_of(status));
  if (features.has_animation != 0) refuse_webp("this is an animation; give one picture");
  return {features.height, features.width};
}

void decode_webp(std::span<const std::uint8_t> file, const DecodeOptions& options, Image& out) {
  const ImageSize size = webp_size(file);
  check_pixels(size, options, "decode_webp");
  out.height = size.height;
  out.width = size.width;
  out.pixels.resize(3 * static_cast<std::size_t>(size.height * size.width));
  WebPDecoderConfig config;
  if (WebPInitDecoderConfig(&config) == 0)
    refuse_webp("libwebp is of another version than its header");
  config.output.colorspace = MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA = {out.pixels.data(), static_cast<int>(3 * size.width), out.pixels.size()};
  const VP8StatusCode status = WebPDecode(file.data(), file.size(), &config);
  WebPFreeDecBuffer(&config.output);
  if (status != VP8_STATUS_OK) refuse_webp(reason_of(status));
}

}  // namespace dkfac::data
