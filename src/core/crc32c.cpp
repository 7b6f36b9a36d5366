#include "core/shared/crc32c.h"

#include <array>

namespace dkfac::cpu {
namespace {

using Crc32cTable = std::array<std::uint32_t, 256>;

// Row k: contribution of a byte followed by k more bytes ("slicing by eight").
constexpr std::array<Crc32cTable, 8> make_crc32c_tables() {
  constexpr std::uint32_t kPolynomial = 0x82F63B78;  // bits reversed
  std::array<Crc32cTable, 8> tables{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ kPolynomial : crc >> 1;
    tables[0][i] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k)
    for (std::size_t i = 0; i < 256; ++i) {
      const std::uint32_t before = tables[k - 1][i];
      tables[k][i] = (before >> 8) ^ tables[0][before & 0xFF];
    }
  return tables;
}

constexpr std::array<Crc32cTable, 8> kCrc32cTables = make_crc32c_tables();

std::uint32_t byte_at(std::span<const std::byte> bytes, std::size_t i) {
  return std::to_integer<std::uint32_t>(bytes[i]);
}

}  // namespace

std::uint32_t crc32c_by_tables(std::span<const std::byte> bytes, std::uint32_t seed) noexcept {
  std::uint32_t crc = ~seed;
  while (bytes.size() >= 8) {
    std::uint32_t next = 0;
    for (std::size_t i = 0; i < 8; ++i) {
      const std::uint32_t before = i < 4 ? (crc >> (8 * i)) & 0xFF : 0;
      next ^= kCrc32cTables[7 - i][byte_at(bytes, i) ^ before];
    }
    crc = next;
    bytes = bytes.subspan(8);
  }
  for (std::size_t i = 0; i < bytes.size(); ++i)
    crc = (crc >> 8) ^ kCrc32cTables[0][(crc ^ byte_at(bytes, i)) & 0xFF];
  return ~crc;
}

}  // namespace dkfac::cpu
