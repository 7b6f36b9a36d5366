#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace dkfac {

/// Computes the CRC-32C (Castagnoli, as in RFC 3720), by the processor's instruction where it has
/// one. With the checksum of the preceding bytes as `seed` the result is the checksum of both parts
/// together.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> bytes,
                                   std::uint32_t seed = 0) noexcept;
[[nodiscard]] inline std::uint32_t crc32c(std::string_view text) noexcept {
  return crc32c(std::as_bytes(std::span(text.data(), text.size())));
}

namespace cpu {
/// The same without the instruction.
[[nodiscard]] std::uint32_t crc32c_by_tables(std::span<const std::byte> bytes,
                                             std::uint32_t seed = 0) noexcept;
}  // namespace cpu

}  // namespace dkfac
