#include "core/shared/crc32c.h"

#include <string>

#include <gtest/gtest.h>

namespace dkfac {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

/// By the instruction, where the processor has it, and by tables.
void expect_crc32c(const std::string& text, std::uint32_t sum) {
  EXPECT_EQ(crc32c(text), sum);
  EXPECT_EQ(cpu::crc32c_by_tables(bytes_of(text)), sum);
}

TEST(Crc32c, GivesThePublishedValues) {  // RFC 3720, B.4, and the customary check value.
  expect_crc32c("123456789", 0xE3069283u);
  expect_crc32c("", 0u);
  expect_crc32c(std::string(32, '\0'), 0x8A9136AAu);
  expect_crc32c(std::string(32, '\xff'), 0x62A8AB43u);
  std::string up, down;
  for (int i = 0; i < 32; ++i) {
    up += static_cast<char>(i);
    down += static_cast<char>(31 - i);
  }
  expect_crc32c(up, 0x46DD794Eu);
  expect_crc32c(down, 0x113FDB5Cu);
}

TEST(Crc32c, DoesNotDependOnThePiecesAndSeesEveryBit) {
  std::string text = "The sum of a text does not depend on the pieces it comes in.";
  const auto all = bytes_of(text);
  const std::uint32_t sum = crc32c(text);
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_EQ(crc32c(all.subspan(cut), crc32c(all.first(cut))), sum) << cut;
    EXPECT_EQ(cpu::crc32c_by_tables(all.subspan(cut), crc32c(all.first(cut))), sum) << cut;
  }
  for (char& byte : text)
    for (int bit = 0; bit < 8; ++bit) {
      const char before = byte;
      byte = static_cast<char>(byte ^ (1 << bit));
      EXPECT_NE(crc32c(text), sum);
      byte = before;
    }
}

}  // namespace
}  // namespace dkfac
