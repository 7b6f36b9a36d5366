#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>

#include "comm/transport/deadline.h"
#include "comm/transport/tcp_address.h"

namespace dkfac::comm {

/// Owner of a socket descriptor. All sockets are non-blocking; blocking functions have a deadline.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() { close(); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    if (this != &other) {
      close();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] bool open() const { return fd_ >= 0; }
  void close() noexcept;

 private:
  int fd_ = -1;
};

/// Listens at `port` on all addresses of this machine, of IPv6 too where the system has it; 0
/// chooses a free port. Throws CommError, e.g. when the port is in use.
[[nodiscard]] Socket listen_at(std::uint16_t port);
[[nodiscard]] std::uint16_t port_of(const Socket& listener);

struct Accepted {
  Socket socket;
  Address address{};  ///< Address of the peer.
};
[[nodiscard]] bool has_pending(const Socket& listener);
enum class AcceptResult : std::uint8_t { accepted, aborted, no_descriptors };
/// Accepts one connection. aborted: the peer has already closed it; no_descriptors: this process
/// may open no more files.
[[nodiscard]] AcceptResult accept_from(const Socket& listener, Accepted& accepted);
/// Connects, retrying until the deadline since the other side may not listen yet. check() is called
/// before each attempt and may throw. `peer` names the other side in errors. Throws CommError.
[[nodiscard]] Socket connect_to(const Endpoint& to, const Deadline& deadline, std::string_view peer,
                                const std::function<void()>& check);
/// Whether the other end is on this machine, as its address says.
[[nodiscard]] bool is_from_here(const Socket& socket);
/// Whether both ends are the same socket: a connection attempt to a port without a listener may get
/// that port as its own.
[[nodiscard]] bool is_own_peer(const Socket& socket);

/// Transfer a whole message; `peer` names the other side in errors, and check() is called while
/// they wait and may throw. Throw CommError at the deadline or if the connection is closed.
void send_all(const Socket& socket, const void* data, std::size_t bytes, const Deadline& deadline,
              std::string_view peer);
void receive_all(
    const Socket& socket, void* data, std::size_t bytes, const Deadline& deadline,
    std::string_view peer, const std::function<void()>& check = [] {});

/// Result of one transfer call. `lost`: the connection is closed or broken.
struct IoResult {
  std::size_t bytes = 0;
  bool lost = false;
};
/// Sends as much as one system call can, `head` before `data` before `tail`; each may be empty.
[[nodiscard]] IoResult send_some(const Socket& socket, const void* head, std::size_t head_bytes,
                                 const void* data, std::size_t data_bytes,
                                 const void* tail = nullptr, std::size_t tail_bytes = 0);
[[nodiscard]] IoResult receive_some(const Socket& socket, void* data, std::size_t bytes);

}  // namespace dkfac::comm
