#include "dkfac/core/error.h"

#include "comm/transport/crypto.h"

namespace dkfac::comm {
namespace {

[[noreturn]] void throw_no_crypto() {
  throw Error("[tcp] this build has no libcrypto (DKFAC_CRYPTO)");
}

}  // namespace

bool has_crypto() noexcept { return false; }
Digest hmac_sha256(std::string_view, std::span<const std::byte>) { throw_no_crypto(); }
Digest random_digest() { throw_no_crypto(); }
bool equal_digests(const Digest&, const Digest&) { throw_no_crypto(); }

}  // namespace dkfac::comm
