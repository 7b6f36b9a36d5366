#include "core/shared/crc32c.h"

namespace dkfac {

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t seed) noexcept {
  return cpu::crc32c_by_tables(bytes, seed);
}

}  // namespace dkfac
