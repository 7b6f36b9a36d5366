#include "comm/transport/tcp_socket.h"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <thread>
#include <unistd.h>

#include "dkfac/core/error.h"

namespace dkfac::comm {
namespace {

constexpr int kRetryMs = 20, kMaxWaitMs = 1000;

[[noreturn]] void throw_errno(std::string_view what, std::string_view advice = {}) {
  const int code = errno;
  const std::string text = detail::concat("[tcp] ", what, ": ", std::strerror(code), advice);
  if (code == EMFILE || code == ENFILE) throw Error(text);  // Another start would meet it again.
  throw CommError(text);
}

Socket new_socket(int family) {
  Socket socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.open() && errno != EAFNOSUPPORT)
    throw_errno("cannot make a socket",
                errno == EMFILE || errno == ENFILE ? "; raise the limit (ulimit -n)" : "");
  return socket;
}

Endpoint own_end(const Socket& socket) {
  SystemAddress address;
  if (getsockname(socket.fd(), address.get(), &address.length) != 0) throw_errno("getsockname");
  return endpoint_of(address);
}

/// The other end; false where the connection has ended.
bool find_peer(const Socket& socket, Endpoint& peer) {
  SystemAddress address;
  const bool found = getpeername(socket.fd(), address.get(), &address.length) == 0;
  if (found) peer = endpoint_of(address);
  return found;
}

/// Binds to all addresses: one socket has those of IPv4 too, unless the system has no IPv6.
bool bind_to_all(Socket& socket, std::uint16_t port) {
  socket = new_socket(AF_INET6);
  const int yes = 1, no = 0;
  Endpoint all{{}, port};
  if (socket.open())
    setsockopt(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
  else
    socket = new_socket(AF_INET), all.address = ipv4(INADDR_ANY);
  if (!socket.open()) return false;
  setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  SystemAddress address = system_address(all);
  return bind(socket.fd(), address.get(), address.length) == 0;
}

/// Sets options: small messages are sent immediately, and a lost machine is detected in about a
/// minute.
void set_up(const Socket& socket) {
  const auto set = [&](int level, int option, int value) {
    setsockopt(socket.fd(), level, option, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
}

int wait_ms(const Deadline& deadline) {
  return static_cast<int>(std::clamp(deadline.remaining() * 1000, 0.0, double{kMaxWaitMs}));
}

/// Waits until the socket may be ready; false when the deadline has passed.
bool wait_for(const Socket& socket, short events, const Deadline& deadline) {
  if (deadline.passed()) return false;
  pollfd entry{socket.fd(), events, 0};
  (void)poll(&entry, 1, wait_ms(deadline));
  return true;
}

/// Attempts one connection; returns 0 or the error.
int try_connect(const Socket& socket, const Endpoint& to, const Deadline& deadline) {
  if (!socket.open()) return EAFNOSUPPORT;
  SystemAddress address = system_address(to);
  if (connect(socket.fd(), address.get(), address.length) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd entry{socket.fd(), POLLOUT, 0};
  while (poll(&entry, 1, wait_ms(deadline)) <= 0)
    if (deadline.passed()) return ETIMEDOUT;
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
  return error;
}

IoResult moved_by(ssize_t result) {
  if (result > 0) return {static_cast<std::size_t>(result), false};
  if (result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return {};
  return {0, true};
}

template <class Move>
void move_all(const Socket& socket, std::size_t bytes, short events, const Deadline& deadline,
              std::string_view peer, Move move) {
  for (std::size_t done = 0; done < bytes;) {
    const IoResult moved = move(done);
    if (moved.lost)
      throw CommError(detail::concat(
          "[tcp] ", peer, " closed the connection during the rendezvous; see its message"));
    done += moved.bytes;
    if (moved.bytes == 0 && !wait_for(socket, events, deadline))
      throw CommError(detail::concat("[tcp] ", peer, " did not answer within ", deadline.seconds(),
                                     " s (timeout_s); look there, or raise the limit"));
  }
}

}  // namespace

void Socket::close() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Socket listen_at(std::uint16_t port) {
  Socket socket;
  if (!bind_to_all(socket, port) || listen(socket.fd(), SOMAXCONN) != 0)
    throw_errno(detail::concat("cannot listen at port ", port),
                "; choose a free one on all ranks, by MASTER_PORT, or by DKFAC_PORT where another "
                "program needs that");
  return socket;
}

std::uint16_t port_of(const Socket& listener) { return own_end(listener).port; }

bool has_pending(const Socket& listener) {
  pollfd entry{listener.fd(), POLLIN, 0};
  return poll(&entry, 1, 0) > 0;
}

AcceptResult accept_from(const Socket& listener, Accepted& accepted) {
  SystemAddress address;
  accepted.socket =
      Socket(accept4(listener.fd(), address.get(), &address.length, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!accepted.socket.open())
    return errno == EMFILE || errno == ENFILE ? AcceptResult::no_descriptors
                                              : AcceptResult::aborted;
  set_up(accepted.socket);
  accepted.address = endpoint_of(address).address;
  return AcceptResult::accepted;
}

bool is_from_here(const Socket& socket) {
  Endpoint peer;
  return !find_peer(socket, peer) || is_loopback(peer.address) ||
         peer.address == own_end(socket).address;
}

bool is_own_peer(const Socket& socket) {
  Endpoint peer;
  return find_peer(socket, peer) && peer == own_end(socket);
}

Socket connect_to(const Endpoint& to, const Deadline& deadline, std::string_view peer,
                  const std::function<void()>& check) {
  for (;;) {
    check();
    Socket socket = new_socket(is_ipv4(to.address) ? AF_INET : AF_INET6);
    int error = try_connect(socket, to, deadline);
    if (error == 0 && is_own_peer(socket)) error = ECONNREFUSED;
    if (error == 0) {
      set_up(socket);
      return socket;
    }
    if (deadline.passed())
      throw CommError(detail::concat("[tcp] no connection to ", peer, " within ",
                                     deadline.seconds(), " s (timeout_s): ", std::strerror(error),
                                     "; is the process there running, and the port open?"));
    socket.close();  // before the pause: it could occupy the port of the awaited process
    std::this_thread::sleep_for(std::chrono::milliseconds(kRetryMs));
  }
}

void send_all(const Socket& socket, const void* data, std::size_t bytes, const Deadline& deadline,
              std::string_view peer) {
  move_all(socket, bytes, POLLOUT, deadline, peer, [&](std::size_t done) {
    return send_some(socket, nullptr, 0, static_cast<const std::byte*>(data) + done, bytes - done);
  });
}

void receive_all(const Socket& socket, void* data, std::size_t bytes, const Deadline& deadline,
                 std::string_view peer, const std::function<void()>& check) {
  move_all(socket, bytes, POLLIN, deadline, peer, [&](std::size_t done) {
    check();
    return receive_some(socket, static_cast<std::byte*>(data) + done, bytes - done);
  });
}

IoResult send_some(const Socket& socket, const void* head, std::size_t head_bytes, const void* data,
                   std::size_t data_bytes, const void* tail, std::size_t tail_bytes) {
  // sendmsg only reads; its structures are shared with recvmsg.
  std::array<iovec, 3> parts{iovec{const_cast<void*>(head), head_bytes},   // NOLINT
                             iovec{const_cast<void*>(data), data_bytes},   // NOLINT
                             iovec{const_cast<void*>(tail), tail_bytes}};  // NOLINT
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  return moved_by(sendmsg(socket.fd(), &message, MSG_NOSIGNAL));
}

IoResult receive_some(const Socket& socket, void* data, std::size_t bytes) {
  return moved_by(recv(socket.fd(), data, bytes, 0));
}

}  // namespace dkfac::comm
