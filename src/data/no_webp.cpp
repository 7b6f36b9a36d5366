#include "dkfac/core/error.h"

#include "data/photo_format.h"

namespace dkfac::data {
namespace {

[[noreturn]] void no_webp() {
  throw DataError(
      "[decode_webp] this is a WebP file, and this build has no libwebp; build it with libwebp");
}

}  // namespace

bool have_webp() { return false; }
ImageSize webp_size(std::span<const std::uint8_t>) { no_webp(); }
void decode_webp(std::span<const std::uint8_t>, const DecodeOptions&, Image&) { no_webp(); }

}  // namespace dkfac::data
