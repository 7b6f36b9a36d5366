#include "dkfac/core/error.h"

#include "data/photo_format.h"

namespace dkfac::data {
namespace {

[[noreturn]] void no_png() {
  throw DataError(
      "[decode_png] this is a PNG file, and this build has no libpng; build it with libpng");
}

}  // namespace

bool have_png() { return false; }
ImageSize png_size(std::span<const std::uint8_t>) { no_png(); }
void decode_png(std::span<const std::uint8_t>, const DecodeOptions&, Image&) { no_png(); }

}  // namespace dkfac::data
