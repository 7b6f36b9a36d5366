#include "comm/transport/tcp_socket.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

#include "comm/conformance.h"
#include "comm/file_limit.h"
#include "comm/transport/tcp_mesh.h"

namespace dkfac::comm {
namespace {

const Address kHere = ipv4(INADDR_LOOPBACK);

Deadline far_away() {
  Deadline deadline(100);
  deadline.start();
  return deadline;
}

/// Returns a bound socket, at its own port, that does not listen.
Socket bound(sockaddr_in& address) {
  Socket socket(::socket(AF_INET, SOCK_STREAM, 0));
  address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(socket.fd(), generic, length), 0);
  EXPECT_EQ(getsockname(socket.fd(), generic, &length), 0);
  return socket;
}

TEST(TcpSocket, TellsAConnectionToItselfFromOneToAListener) {
  const Socket listener = listen_at(0);
  const Socket ordinary = connect_to({kHere, port_of(listener)}, far_away(), "the listener", [] {});
  EXPECT_FALSE(is_own_peer(ordinary));
  sockaddr_in address{};
  const Socket lonely = bound(address);
  ASSERT_EQ(connect(lonely.fd(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_TRUE(is_own_peer(lonely));
}

TEST(TcpSocket, ShowsAddressesOfBothKinds) {
  const Deadline deadline = far_away();
  EXPECT_EQ(to_string({resolve("127.0.0.1", deadline), 80}), "127.0.0.1:80");
  EXPECT_EQ(to_string({resolve("[fd00::7]", deadline), 80}), "[fd00::7]:80");
  EXPECT_TRUE(is_loopback(resolve("::1", deadline)) && is_loopback(resolve("127.9.9.9", deadline)));
  EXPECT_FALSE(is_loopback(resolve("fd00::1", deadline)) || is_loopback(ipv4(0x0a000001)));
  for (const Endpoint& endpoint :
       {Endpoint{ipv4(0x0a000001), 5}, {resolve("fd00::1", deadline), 6}})
    EXPECT_EQ(endpoint_of(system_address(endpoint)), endpoint);
}

TEST(TcpSocket, GivesUpWhenTheCheckThrowsLongBeforeTheDeadline) {
  sockaddr_in address{};
  const Socket nobody_listens = bound(address);
  int checks = 0;
  const auto check = [&] {
    if (++checks == 3) throw CommError("rank 1 has ended");
  };
  const Deadline deadline = far_away();
  EXPECT_THROW((void)connect_to({kHere, ntohs(address.sin_port)}, deadline, "rank 1", check),
               CommError);
  EXPECT_EQ(checks, 3);
  EXPECT_FALSE(deadline.passed());
}

Socket caller(const Listener& listener) {
  return connect_to({kHere, listener.port()}, far_away(), "the listener", [] {});
}

Socket connection(const Listener& listener, std::uint32_t rank) {
  Socket socket = caller(listener);
  Handshake handshake;
  handshake.rank = rank;
  send_all(socket, &handshake, sizeof handshake, far_away(), "the listener");
  return socket;
}

/// Waits for `count` connections.
std::vector<Listener::Connection> connections_of(Listener& listener, std::size_t count) {
  std::vector<Listener::Connection> connections;
  for (const Deadline deadline = far_away(); connections.size() < count && !deadline.passed();)
    for (Listener::Connection& one : listener.receive(10)) connections.push_back(std::move(one));
  return connections;
}

bool is_closed(const Socket& socket) {
  char byte = 0;
  return receive_some(socket, &byte, 1).lost;
}

TEST(TcpListener, DropsTheSilentConnectionsThatHaveWaitedLongest) {
  Listener listener(0, 3);
  std::vector<Socket> silent_peers;
  for (int i = 0; i < 8; ++i) silent_peers.push_back(caller(listener));
  const Socket friendly = connection(listener, 5);
  const auto connections = connections_of(listener, 1);
  ASSERT_EQ(connections.size(), 1U);
  EXPECT_EQ(connections[0].handshake.rank, 5U);
  (void)listener.receive(0);
  std::string closed;
  for (const Socket& pending : silent_peers) closed += is_closed(pending) ? 'x' : '.';
  EXPECT_EQ(closed, "xxxxx...");
  EXPECT_FALSE(is_closed(friendly));
}

TEST(TcpListener, ReadsHandshakesBeforeItMakesRoom) {
  Listener listener(0, 1);
  std::vector<Socket> friends;
  for (std::uint32_t rank = 1; rank <= 8; ++rank) friends.push_back(connection(listener, rank));
  EXPECT_EQ(connections_of(listener, 8).size(), 8U);
}

TEST(TcpListener, MakesRoomWhereNoFilesAreLeft) {
  Listener listener(0, 100);
  std::vector<Socket> callers;
  for (int i = 0; i < 20; ++i) callers.push_back(caller(listener));
  callers.push_back(connection(listener, 7));
  const FileLimit limit(2);
  EXPECT_EQ(connections_of(listener, 1).size(), 1U);
}

TEST(TcpSocket, NamesTheLimitOfOpenFiles) {
  const FileLimit none_left(0);
  const std::string message = final_error([] { (void)listen_at(0); });
  EXPECT_TRUE(testing::contains(message, "ulimit -n")) << message;
}

TEST(TcpListener, SaysSoWhereThereIsNoRoomToMake) {
  Listener listener(0, 100);
  const Socket one = connection(listener, 1), two = connection(listener, 2),
               three = connection(listener, 3);
  const FileLimit limit(2);
  const auto connections = connections_of(listener, 2);
  EXPECT_EQ(connections.size(), 2U);
  const std::string message = final_error([&] { (void)connections_of(listener, 1); });
  EXPECT_TRUE(testing::contains(message, "ulimit -n"))
      << "the third is at the listener: " << message;
}

}  // namespace
}  // namespace dkfac::comm
