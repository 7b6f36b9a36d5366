#include "comm/transport/crypto.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "dkfac/core/error.h"

namespace dkfac::comm {
namespace {

unsigned char* raw(Digest& digest) { return reinterpret_cast<unsigned char*>(digest.data()); }

}  // namespace

bool has_crypto() noexcept { return true; }

Digest hmac_sha256(std::string_view key, std::span<const std::byte> message) {
  Digest digest{};
  unsigned length = 0;
  const auto* bytes = reinterpret_cast<const unsigned char*>(message.data());
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), bytes, message.size(),
           raw(digest), &length) == nullptr ||
      length != digest.size())
    throw Error("[tcp] libcrypto computes no HMAC-SHA256; is its configuration complete?");
  return digest;
}

Digest random_digest() {
  Digest digest{};
  if (RAND_bytes(raw(digest), static_cast<int>(digest.size())) != 1)
    throw Error("[tcp] libcrypto has no random numbers; is /dev/urandom readable?");
  return digest;
}

bool equal_digests(const Digest& a, const Digest& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace dkfac::comm
