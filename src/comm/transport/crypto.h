#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

/// Interface of comm to OpenSSL's libcrypto, implemented by its source or by a stub.
namespace dkfac::comm {

using Digest = std::array<std::byte, 32>;

/// Whether this build has libcrypto; without it the functions below throw Error.
[[nodiscard]] bool has_crypto() noexcept;
/// HMAC-SHA256 (RFC 2104, FIPS 180-4).
[[nodiscard]] Digest hmac_sha256(std::string_view key, std::span<const std::byte> message);
[[nodiscard]] Digest random_digest();
/// Compares in a time that does not depend on the values.
[[nodiscard]] bool equal_digests(const Digest& a, const Digest& b);

}  // namespace dkfac::comm
