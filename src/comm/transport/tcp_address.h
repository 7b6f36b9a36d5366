#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <sys/socket.h>

#include "comm/transport/deadline.h"

namespace dkfac::comm {

/// IPv6 address, or an IPv4 address as ::ffff:a.b.c.d (RFC 4291, 2.5.5.2), in network byte order.
/// All zero: none.
using Address = std::array<std::uint8_t, 16>;
[[nodiscard]] Address ipv4(std::uint32_t address);  ///< From host byte order.
[[nodiscard]] bool is_ipv4(const Address& address);
[[nodiscard]] bool is_loopback(const Address& address);

struct Endpoint {
  Address address{};
  std::uint16_t port = 0;  ///< In host byte order.
  bool operator==(const Endpoint&) const = default;
};
/// "10.0.0.7:29500", "[fd00::7]:29500"
[[nodiscard]] std::string to_string(const Endpoint& endpoint);

/// The same for calls of the system, of AF_INET or AF_INET6.
struct SystemAddress {
  sockaddr_storage storage{};
  socklen_t length = sizeof(sockaddr_storage);
  [[nodiscard]] sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};
[[nodiscard]] SystemAddress system_address(const Endpoint& endpoint);
[[nodiscard]] Endpoint endpoint_of(const SystemAddress& address);

/// Resolves a host name or an address, with or without brackets, to its IPv4 address, else to its
/// IPv6 address; retries until the deadline while the name server does not answer, as on a machine
/// that has just started. Throws CommError, at once when the name is unknown.
[[nodiscard]] Address resolve(const std::string& host, const Deadline& deadline);

}  // namespace dkfac::comm
