#include <cstring>
#include <nmmintrin.h>

#include "core/shared/crc32c.h"

namespace dkfac {
namespace {

[[gnu::target("sse4.2")]] std::uint32_t crc32c_by_instruction(std::span<const std::byte> bytes,
                                                              std::uint32_t seed) noexcept {
  std::uint64_t crc = ~seed;
  for (; bytes.size() >= sizeof crc; bytes = bytes.subspan(sizeof crc)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data(), sizeof word);
    crc = _mm_crc32_u64(crc, word);
  }
  auto last = static_cast<std::uint32_t>(crc);
  for (const std::byte byte : bytes)
    last = _mm_crc32_u8(last, std::to_integer<unsigned char>(byte));
  return ~last;
}

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t seed) noexcept {
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  return has_instruction ? crc32c_by_instruction(bytes, seed) : cpu::crc32c_by_tables(bytes, seed);
}

}  // namespace dkfac
