#include "comm/transport/tcp_address.h"

#include <algorithm>
#include <arpa/inet.h>
#include <chrono>
#include <cstring>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <thread>

#include "dkfac/core/error.h"

#include "core/shared/printable.h"

namespace dkfac::comm {
namespace {

constexpr int kAskAgainMs = 20;
constexpr Address kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
constexpr Address kLoopback = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
constexpr std::size_t kIpv4At = 12;

using AddressList = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

/// The addresses of one family; `code` is that of getaddrinfo().
AddressList look_up(const std::string& host, int family, int& code) {
  addrinfo hints{};
  hints.ai_family = family;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  code = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  return {code == 0 ? found : nullptr, [](addrinfo* list) {
            if (list != nullptr) freeaddrinfo(list);
          }};
}

std::string without_brackets(const std::string& host) {
  const bool has_them = host.size() > 2 && host.front() == '[' && host.back() == ']';
  return has_them ? host.substr(1, host.size() - 2) : host;
}

}  // namespace

Address ipv4(std::uint32_t address) {
  Address mapped = kMapped;
  const std::uint32_t ordered = htonl(address);
  std::memcpy(mapped.data() + kIpv4At, &ordered, sizeof ordered);
  return mapped;
}

bool is_ipv4(const Address& address) {
  return std::equal(address.begin(), address.begin() + kIpv4At, kMapped.begin());
}

bool is_loopback(const Address& address) {
  return address == kLoopback || (is_ipv4(address) && address[kIpv4At] == 127);
}

std::string to_string(const Endpoint& endpoint) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (is_ipv4(endpoint.address)) {
    inet_ntop(AF_INET, endpoint.address.data() + kIpv4At, text.data(), text.size());
    return detail::concat(text.data(), ':', endpoint.port);
  }
  inet_ntop(AF_INET6, endpoint.address.data(), text.data(), text.size());
  return detail::concat('[', text.data(), "]:", endpoint.port);
}

SystemAddress system_address(const Endpoint& endpoint) {
  SystemAddress address;
  if (is_ipv4(endpoint.address)) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(endpoint.port);
    std::memcpy(&in.sin_addr, endpoint.address.data() + kIpv4At, sizeof in.sin_addr);
    std::memcpy(&address.storage, &in, sizeof in);
    address.length = sizeof in;
    return address;
  }
  sockaddr_in6 in{};
  in.sin6_family = AF_INET6;
  in.sin6_port = htons(endpoint.port);
  std::memcpy(&in.sin6_addr, endpoint.address.data(), sizeof in.sin6_addr);
  std::memcpy(&address.storage, &in, sizeof in);
  address.length = sizeof in;
  return address;
}

Endpoint endpoint_of(const SystemAddress& address) {
  Endpoint endpoint;
  if (address.storage.ss_family == AF_INET) {
    sockaddr_in in{};
    std::memcpy(&in, &address.storage, sizeof in);
    return {ipv4(ntohl(in.sin_addr.s_addr)), ntohs(in.sin_port)};
  }
  sockaddr_in6 in{};
  std::memcpy(&in, &address.storage, sizeof in);
  std::memcpy(endpoint.address.data(), &in.sin6_addr, endpoint.address.size());
  endpoint.port = ntohs(in.sin6_port);
  return endpoint;
}

Address resolve(const std::string& host, const Deadline& deadline) {
  const std::string name = without_brackets(host);
  for (;;) {
    int code = 0, newer = 0;
    AddressList found = look_up(name, AF_INET, code);
    if (found == nullptr) found = look_up(name, AF_INET6, newer);
    if (found != nullptr) {
      SystemAddress address;
      std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
      return endpoint_of(address).address;
    }
    if ((code != EAI_AGAIN && newer != EAI_AGAIN) || deadline.passed())
      throw CommError(detail::concat("[tcp] the host '", printable(host), "' has no address (",
                                     gai_strerror(newer), "); check MASTER_ADDR"));
    std::this_thread::sleep_for(std::chrono::milliseconds(kAskAgainMs));
  }
}

}  // namespace dkfac::comm
