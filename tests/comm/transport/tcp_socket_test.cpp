#include "comm/transport/tcp_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

#include "comm/transport/tcp_mesh.h"

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

Socket caller(const Reception& door) {
  return connect_to({kHere, door.port()}, far_away(), [] {});
}

Socket guest(const Reception& door, std::uint32_t rank) {
  Socket socket = caller(door);
  Hello hello;
  hello.rank = rank;
  send_all(socket, &hello, sizeof hello, far_away(), "the door");
  return socket;
}

/// Waits for as many.
std::vector<Reception::Guest> guests_of(Reception& door, std::size_t count) {
  std::vector<Reception::Guest> guests;
  for (const Deadline deadline = far_away(); guests.size() < count && !deadline.passed();)
    for (Reception::Guest& one : door.receive(10)) guests.push_back(std::move(one));
  return guests;
}

bool is_closed(const Socket& socket) {
  char byte = 0;
  return receive_some(socket, &byte, 1).lost;
}

TEST(TcpReception, DropsTheStrangersThatHaveWaitedLongest) {
  Reception door(0, 3);
  std::vector<Socket> strangers;
  for (int i = 0; i < 8; ++i) strangers.push_back(caller(door));
  const Socket friendly = guest(door, 5);
  const auto guests = guests_of(door, 1);
  ASSERT_EQ(guests.size(), 1U);
  EXPECT_EQ(guests[0].hello.rank, 5U);
  (void)door.receive(0);
  std::string closed;
  for (const Socket& stranger : strangers) closed += is_closed(stranger) ? 'x' : '.';
  EXPECT_EQ(closed, "xxxxx...");
  EXPECT_FALSE(is_closed(friendly));
}

TEST(TcpReception, HearsWhoHasSpokenBeforeItMakesRoom) {
  Reception door(0, 1);
  std::vector<Socket> friends;
  for (std::uint32_t rank = 1; rank <= 8; ++rank) friends.push_back(guest(door, rank));
  EXPECT_EQ(guests_of(door, 8).size(), 8U);
}

/// The number of open files, for the life of a test.
class FileLimit {
 public:
  /// So many more than are open now.
  explicit FileLimit(int more) {
    const Socket next(fcntl(0, F_DUPFD, 3));
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit now = before_;
    now.rlim_cur = static_cast<rlim_t>(next.fd() + more);
    setrlimit(RLIMIT_NOFILE, &now);
  }
  ~FileLimit() { setrlimit(RLIMIT_NOFILE, &before_); }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  rlimit before_{};
};

TEST(TcpReception, MakesRoomWhereNoFilesAreLeft) {
  Reception door(0, 100);
  std::vector<Socket> callers;
  for (int i = 0; i < 20; ++i) callers.push_back(caller(door));
  callers.push_back(guest(door, 7));
  const FileLimit limit(2);
  EXPECT_EQ(guests_of(door, 1).size(), 1U);
}

TEST(TcpReception, SaysSoWhereThereIsNoRoomToMake) {
  Reception door(0, 100);
  const Socket one = guest(door, 1), two = guest(door, 2), three = guest(door, 3);
  const FileLimit limit(2);
  const auto guests = guests_of(door, 2);
  EXPECT_EQ(guests.size(), 2U);
  EXPECT_THROW((void)guests_of(door, 1), CommError) << "the third is at the door";
}

}  // namespace
}  // namespace dkfac::comm
