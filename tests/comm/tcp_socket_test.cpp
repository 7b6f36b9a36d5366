#include "comm/tcp_socket.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

namespace dkfac::comm {
namespace {

constexpr std::uint32_t kHere = INADDR_LOOPBACK;

Deadline far_away() {
  Deadline deadline(100);
  deadline.start();
  return deadline;
}

/// A socket at a port of its own that does not listen.
Socket bound(sockaddr_in& address) {
  Socket socket(::socket(AF_INET, SOCK_STREAM, 0));
  address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(kHere);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(socket.fd(), generic, length), 0);
  EXPECT_EQ(getsockname(socket.fd(), generic, &length), 0);
  return socket;
}

TEST(TcpSocket, TellsAConnectionToItselfFromOneToAListener) {
  const Socket door = listen_at(0);
  const Socket ordinary = connect_to({kHere, port_of(door)}, far_away(), [] {});
  EXPECT_FALSE(is_own_peer(ordinary));
  sockaddr_in address{};
  const Socket lonely = bound(address);
  ASSERT_EQ(connect(lonely.fd(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_TRUE(is_own_peer(lonely));
}

TEST(TcpSocket, GivesUpWhenTheCheckThrowsLongBeforeTheDeadline) {
  sockaddr_in address{};
  const Socket nobody_listens = bound(address);
  int checks = 0;
  const auto check = [&] {
    if (++checks == 3) throw CommError("rank 1 has ended");
  };
  const Deadline deadline = far_away();
  EXPECT_THROW((void)connect_to({kHere, ntohs(address.sin_port)}, deadline, check), CommError);
  EXPECT_EQ(checks, 3);
  EXPECT_FALSE(deadline.passed());
}

}  // namespace
}  // namespace dkfac::comm
