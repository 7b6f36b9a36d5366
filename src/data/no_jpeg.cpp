#include "dkfac/core/error.h"
#include "dkfac/data/image.h"

namespace dkfac::data {
namespace {

[[noreturn]] void absent() {
  throw DataError("[decode_jpeg] this build has no libjpeg; build it with libjpeg-turbo");
}

}  // namespace

ImageSize jpeg_size(std::span<const std::uint8_t>) { absent(); }
void decode_jpeg(std::span<const std::uint8_t>, const DecodeOptions&, Image&) { absent(); }

}  // namespace dkfac::data
