#include "comm/transport/crypto.h"

#include <string>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

namespace dkfac::comm {
namespace {

std::string hexadecimal(const Digest& digest) {
  std::string text;
  for (const std::byte byte : digest) {
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte) >> 4];
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte) & 15U];
  }
  return text;
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(Crypto, GivesTheDigestsOfRfc4231) {
  if (!has_crypto()) GTEST_SKIP() << "this build has no libcrypto";
  struct Case {
    std::string key, message, digest;
  };
  const std::vector<Case> cases = {
      {std::string(20, '\x0b'), "Hi There",
       "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
      {"Jefe", "what do ya want for nothing?",
       "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
      {std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First",
       "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"}};
  for (const Case& c : cases)
    EXPECT_EQ(hexadecimal(hmac_sha256(c.key, bytes_of(c.message))), c.digest);
}

TEST(Crypto, TellsDigestsApartAndNeverDrawsOneTwice) {
  if (!has_crypto()) GTEST_SKIP() << "this build has no libcrypto";
  const Digest one = random_digest();
  EXPECT_TRUE(equal_digests(one, one));
  EXPECT_NE(one, random_digest());
  for (std::size_t i = 0; i < one.size(); ++i) {
    Digest other = one;
    other[i] ^= std::byte{1};
    EXPECT_FALSE(equal_digests(one, other)) << i;
  }
}

TEST(Crypto, IsAnErrorWithoutItsLibrary) {
  if (has_crypto()) GTEST_SKIP() << "this build has libcrypto";
  EXPECT_THROW((void)random_digest(), Error);
  EXPECT_THROW((void)hmac_sha256("key", {}), Error);
}

}  // namespace
}  // namespace dkfac::comm
