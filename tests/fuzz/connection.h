#pragma once

#include <algorithm>
#include <array>
#include <stdexcept>
#include <sys/socket.h>
#include <utility>

#include "comm/transport/tcp_socket.h"
#include "fuzz/targets.h"

namespace dkfac::fuzz {

/// A connection whose other end has sent these bytes and sends no more.
class Connection {
 public:
  explicit Connection(Bytes bytes) {
    std::array<int, 2> ends{};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) != 0)
      throw std::runtime_error("no pair of sockets");
    near_ = comm::Socket(ends[0]);
    far_ = comm::Socket(ends[1]);
    constexpr std::size_t kMost = 65536;  // Less than it buffers.
    const std::size_t size = std::min(bytes.size(), kMost);
    if (send(far_.fd(), bytes.data(), size, MSG_NOSIGNAL) != static_cast<ssize_t>(size))
      throw std::runtime_error("the connection is full");
    shutdown(far_.fd(), SHUT_WR);
  }
  [[nodiscard]] const comm::Socket& near() const { return near_; }
  [[nodiscard]] comm::Socket take_near() { return std::move(near_); }

 private:
  comm::Socket near_, far_;
};

}  // namespace dkfac::fuzz
