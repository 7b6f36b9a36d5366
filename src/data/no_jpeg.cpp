#include "dkfac/core/error.h"
#include "dkfac/data/image.h"

#include "data/photo_format.h"

namespace dkfac::data {
namespace {

[[noreturn]] void no_jpeg() {
  throw DataError("[decode_jpeg] this build has no libjpeg; build it with libjpeg-turbo");
}

}  // namespace

bool have_jpeg() { return false; }
ImageSize jpeg_size(std::span<const std::uint8_t>) { no_jpeg(); }
void decode_jpeg(std::span<const std::uint8_t>, const DecodeOptions&, Image&) { no_jpeg(); }

}  // namespace dkfac::data
