#include <array>
#include <chrono>
#include <csignal>
#include <new>
#include <stdexcept>
#include <sys/wait.h>
#include <thread>

#include "dkfac/core/error.h"
#include "dkfac/core/stream.h"

#include "comm/conformance.h"
#include "comm/transport/peer_task.h"
#include "comm/transport/tcp_mesh.h"
#include "comm/transport/tcp_socket.h"
#include "support/tcp_ranks.h"

// Each test breaks its own group; every rank must fail with a helpful message.
namespace dkfac::comm::testing {

namespace {

constexpr double kLimit = 20;  ///< Time limit in seconds for immediate failures.

Options full_check(double limit_s = kLimit) {
  return {.timeout_s = limit_s, .check = Check::full, .piece_bytes = 64};
}

/// body(comm) has to fail on every rank, and every later call too. Returns the messages.
std::vector<std::string> failures(int size, const Options& options, const Body& body) {
  std::vector<std::string> messages(static_cast<std::size_t>(size));
  run_tcp(size, options, [&](const std::shared_ptr<Communicator>& comm) {
    messages[static_cast<std::size_t>(comm->rank())] = message_of<CommError>([&] { body(*comm); });
    EXPECT_THROW(comm->barrier(), CommError) << "unusable after a failure";
    EXPECT_TRUE(comm->failed());
  });
  return messages;
}

void expect_all_contain(const std::vector<std::string>& messages, std::string_view part) {
  for (const std::string& message : messages) EXPECT_TRUE(contains(message, part)) << message;
}

void reduce(Communicator& comm, std::size_t count, std::string_view name) {
  std::vector<float> x(count, 1);
  comm.all_reduce(view(x), ReduceOp::sum, Stream::cpu(), name);
}

/// Makes no further calls, but receives the failure.
void idle(Communicator& comm) {
  for (;;) {
    comm.progress();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

/// Runs body on ranks 3 and 2, which are ranks 0 and 1 of a group of their own, and returns what it
/// threw there; both have to throw.
std::vector<std::string> failures_in_a_part(const Options& options, const Body& body) {
  std::vector<std::string> messages(2);
  run_tcp(4, options, [&](const std::shared_ptr<Communicator>& comm) {
    const auto part = comm->split(comm->rank() / 2, -comm->rank());
    if (comm->rank() < 2) return;
    messages[static_cast<std::size_t>(part->rank())] = message_of<CommError>([&] { body(*part); });
  });
  return messages;
}

/// Rank 1 of a group that are ranks 4 and 5 of a job, without memory for a transfer.
class GroupWithoutMemory final : public PeerGroup {
 public:
  GroupWithoutMemory() {
    make_whole(1, 2);
    members_ = {4, 5};
  }
  [[nodiscard]] std::unique_ptr<Transfers> make_transfers(Channel, const CallInfo&, int) override {
    throw std::bad_alloc();
  }
  [[nodiscard]] std::shared_ptr<PeerGroup> subgroup(std::span<const int>, int,
                                                    const Options&) override {
    return nullptr;
  }
  void look_for_notice() override {}
  void send_notice() noexcept override { told = failure_; }

  std::string told;
};

}  // namespace

TEST(TcpMismatch, OtherCallsAreNamed) {
  const auto messages = failures(3, full_check(), [](Communicator& comm) {
    reduce(comm, 8, comm.rank() == 1 ? "second" : "first");
  });
  expect_all_contain(messages, "rank 1 issued #1 all_reduce(sum) f32 x 8 'second'");
  expect_all_contain(messages, "'first'");
}

TEST(TcpMismatch, WithoutComparisonAnotherNameOrCountIsStillAnError) {
  expect_all_contain(
      failures(2, {.timeout_s = kLimit},
               [](Communicator& comm) { reduce(comm, 8, comm.rank() == 1 ? "second" : "first"); }),
      "another collective");
  expect_all_contain(failures(2, {.timeout_s = kLimit},
                              [](Communicator& comm) {
                                std::vector<float> x(comm.rank() == 1 ? 8 : 24);
                                comm.broadcast(view(x), 1, Stream::cpu(), "x");
                                idle(comm);
                              }),
                     "rank 1 sent a message of 32 bytes where 96 were expected");
}

TEST(TcpTimeLimit, NamesOperationLimitAndWhoIsMissing) {
  for (const Check check : {Check::full, Check::hash})
    // One element: two of three ranks own nothing of it, and still name the missing rank.
    for (const std::size_t count : {1U, 100U}) {
      const auto messages =
          failures(3, {.timeout_s = 0.5, .check = check}, [&](Communicator& comm) {
            if (comm.rank() == 2) idle(comm);
            reduce(comm, count, "late");
          });
      expect_all_contain(messages, "waited 0.5 s");
      expect_all_contain(messages, "'late'; rank 2 has not ");
    }
}

TEST(TcpAbort, ReachesPeersLongBeforeTheTimeLimitAndAlsoInSubgroups) {
  const auto messages = failures(4, full_check(100), [](Communicator& comm) {
    const auto part = comm.split(comm.rank() / 2);
    comm.barrier();
    if (comm.rank() == 3) comm.abort("disk full");
    for (;;) part->barrier();
  });
  expect_all_contain(messages, "rank 3 aborted the group: disk full");
}

TEST(TcpAbort, IsReceivedBehindUnreadData) {
  const auto messages = failures(2, {.timeout_s = 100}, [](Communicator& comm) {
    std::vector<float> x(1 << 22);  // more than the connection holds
    if (comm.rank() == 1) idle(comm);
    const OwnedStream stream(Device::cpu());
    comm.broadcast(view(x), 0, stream, "weights");
    for (int i = 0; i < 50; ++i) comm.progress();
    comm.abort("no more time");
    comm.progress();
  });
  expect_all_contain(messages, "no more time");
}

TEST(TcpDropping, AStreamWithUnfinishedWorkFailsThePeers) {
  const auto messages = failures(2, full_check(100), [](Communicator& comm) {
    std::vector<float> x(1000, 1);
    if (comm.rank() == 1) {
      const OwnedStream stream(Device::cpu());
      comm.all_reduce(view(x), ReduceOp::sum, stream, "x");
    }
    comm.all_reduce(view(x), ReduceOp::sum, Stream::cpu(), "x");
    comm.barrier();
  });
  expect_all_contain(messages, "rank 1 dropped #1 all_reduce(sum) f32 x 1000 'x'");
}

TEST(TcpDropping, ByAnExceptionPointsToItInsteadOfAdvising) {
  const auto messages = failures(2, full_check(100), [](Communicator& comm) {
    std::vector<float> x(1000, 1);
    try {
      const OwnedStream stream(Device::cpu());
      if (comm.rank() == 1) {
        comm.all_reduce(view(x), ReduceOp::sum, stream, "x");
        throw std::out_of_range("no such label");
      }
    } catch (const std::out_of_range&) {
      // A program would end by it.
    }
    comm.all_reduce(view(x), ReduceOp::sum, Stream::cpu(), "x");
  });
  expect_all_contain(messages, "rank 1 dropped #1 all_reduce(sum) f32 x 1000 'x'");
  expect_all_contain(messages, "an exception was on its way there");
}

TEST(PeerTask, ALackOfMemoryIsToldToThePeers) {
  const auto group = std::make_shared<GroupWithoutMemory>();
  HostCall call;
  call.info.sequence = 3;
  call.info.op = "barrier";
  {
    PeerTask task(group, {}, call);
    EXPECT_THROW((void)task.advance(), std::bad_alloc);
  }
  EXPECT_EQ(group->told, "std::bad_alloc (rank 5 at #3 barrier)");
}

TEST(TcpSubgroups, ErrorsNameRanksOfTheJob) {
  expect_all_contain(failures_in_a_part(full_check(),
                                        [](Communicator& part) {
                                          if (part.rank() == 1) part.abort("disk full");
                                          for (;;) part.barrier();
                                        }),
                     "rank 2 aborted the group: disk full");
  expect_all_contain(failures_in_a_part(full_check(),
                                        [](Communicator& part) {
                                          reduce(part, 8, part.rank() == 1 ? "second" : "first");
                                        }),
                     "rank 3 issued #1 all_reduce(sum) f32 x 8 'first', but rank 2 issued #1");
  expect_all_contain(failures_in_a_part({.timeout_s = kLimit},
                                        [](Communicator& part) {
                                          std::vector<float> x(part.rank() == 1 ? 8 : 24);
                                          part.broadcast(view(x), 1, Stream::cpu(), "x");
                                          idle(part);
                                        }),
                     "rank 2 sent a message of 32 bytes where 96 were expected");
  expect_all_contain(failures_in_a_part(full_check(1),
                                        [](Communicator& part) {
                                          if (part.rank() == 1) idle(part);
                                          part.barrier();
                                        }),
                     "[barrier] rank 3 waited 1 s (timeout_s) at #1 barrier; rank 2 has not");
}

TEST(TcpSubgroups, ARankThatLeftIsNamedByItsRankInTheJob) {
  run_tcp(4, full_check(), [](const std::shared_ptr<Communicator>& comm) {
    const auto part = comm->split(comm->rank() / 2);
    if (comm->rank() != 2) return;
    const std::string message = message_of<CommError>([&] { part->barrier(); });
    EXPECT_TRUE(contains(message, "rank 3 left the group after 0 calls")) << message;
  });
}

TEST(TcpLeaving, ARankThatWentAwayIsNamedAtOnce) {
  run_tcp(2, {.timeout_s = 100}, [](const std::shared_ptr<Communicator>& comm) {
    comm->barrier();
    if (comm->rank() == 1) return;
    const std::string message = message_of<CommError>([&] { reduce(*comm, 10, "x"); });
    EXPECT_TRUE(contains(message, "rank 1 left the group after 1 calls")) << message;
  });
}

TEST(TcpDeath, AProcessThatIsKilledOrExitsIsNamedAtOnce) {
  for (const auto& [in_a_part, exits] :
       {std::pair(false, false), std::pair(true, false), std::pair(false, true)}) {
    const std::uint16_t port = free_port();
    // In the part the ranks have the opposite order.
    const auto joined = [&](int rank) {
      auto comm = make_tcp(rank, 2, "127.0.0.1", port, {.timeout_s = 30});
      return in_a_part ? comm->split(0, -rank) : comm;
    };
    const pid_t child = fork();
    if (child == 0) {  // only calls of the system and of the library under test
      const auto comm = joined(1);
      comm->barrier();
      if (exits) _exit(0);
      raise(SIGKILL);
    }
    ASSERT_GT(child, 0);
    const std::string message = message_of<CommError>([&] {
      const auto comm = joined(0);
      comm->barrier();
      reduce(*comm, 10, "x");
    });
    EXPECT_TRUE(contains(message, "rank 1 closed its connections")) << message;
    EXPECT_TRUE(contains(message, "process has ended")) << message;
    waitpid(child, nullptr, 0);
  }
}

TEST(TcpMeeting, NamesTheRanksThatDoNotCome) {
  const std::string message = message_of<CommError>(
      [] { (void)make_tcp(0, 3, "127.0.0.1", free_port(), {.timeout_s = 0.2}); });
  EXPECT_TRUE(contains(message, "ranks 1, 2 did not come")) << message;
}

TEST(TcpMeeting, APortInUseSaysWhatToChange) {
  const Socket taken = listen_at(0);
  const std::string message = message_of<CommError>(
      [&] { (void)make_tcp(0, 2, "127.0.0.1", port_of(taken), {.timeout_s = 0.2}); });
  EXPECT_TRUE(contains(message, "in use") && contains(message, "DKFAC_PORT")) << message;
}

TEST(TcpMeeting, NamesAnAddressWhereNothingListens) {
  const std::string message = message_of<CommError>(
      [] { (void)make_tcp(1, 2, "127.0.0.1", free_port(), {.timeout_s = 0.2}); });
  EXPECT_TRUE(contains(message, "no connection to rank 0 at 127.0.0.1:")) << message;
  EXPECT_THROW((void)make_tcp(1, 2, "no-such-host.invalid", 1, {.timeout_s = 0.2}), CommError);
}

TEST(TcpMeeting, ARankThatEndsInTheMiddleIsNamed) {
  std::array<std::string, 3> messages;
  on_threads(3, [&](int rank, std::uint16_t port) {
    if (rank != 1) {
      messages[static_cast<std::size_t>(rank)] = message_of<CommError>(
          [&] { (void)make_tcp(rank, 3, "127.0.0.1", port, {.timeout_s = 2}); });
      return;
    }
    Deadline deadline(kLimit);
    deadline.start();
    (void)rendezvous({1, 3, {}}, "127.0.0.1", port, free_port(), deadline);  // And listens no more.
  });
  EXPECT_TRUE(contains(messages[0], "rank 1 of the job did not come")) << messages[0];
  EXPECT_TRUE(contains(messages[2], "no connection to rank 1 at 127.0.0.1:")) << messages[2];
}

TEST(TcpMeeting, TwoProcessesWithOneRankAreAnError) {
  std::array<std::string, 3> messages;
  on_threads(3, [&](int thread, std::uint16_t port) {
    messages[static_cast<std::size_t>(thread)] = message_of<CommError>(
        [&] { (void)make_tcp(thread == 0 ? 0 : 1, 3, "127.0.0.1", port, {.timeout_s = kLimit}); });
  });
  EXPECT_TRUE(contains(messages[0], "two processes")) << messages[0];
  EXPECT_TRUE(contains(messages[1], "rank 0 at 127.0.0.1")) << messages[1];
}

TEST(TcpMeeting, WorldsOfDifferentSizeAreAnError) {
  std::array<std::string, 2> messages;
  on_threads(2, [&](int rank, std::uint16_t port) {
    messages[static_cast<std::size_t>(rank)] = message_of<CommError>(
        [&] { (void)make_tcp(rank, 2 + rank, "127.0.0.1", port, {.timeout_s = kLimit}); });
  });
  EXPECT_TRUE(contains(messages[0], "rank 1 of 3")) << messages[0];
}

/// Connects to `port` once it has a listener and sends `text`; -1 if there was none.
int knock(std::uint16_t port, std::string_view text) {
  sockaddr_in address{}, own{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(kLimit);
  while (std::chrono::steady_clock::now() < end) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    socklen_t length = sizeof own;
    if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
        getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
        own.sin_port != address.sin_port &&  // otherwise it is connected to itself
        send(fd, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size()))
      return fd;
    close(fd);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return -1;
}

TEST(TcpMeeting, StrangersAtTheDoorAreIgnored) {
  on_threads(2, [](int rank, std::uint16_t port) {
    // Both connect while rank 0 waits for rank 1, and stay connected.
    std::array<int, 2> silent_peers{-1, -1};
    if (rank == 1) {
      silent_peers = {
          knock(port, "GET / HTTP/1.1\r\nHost: somewhere.example\r\n\r\n and more text"),
          knock(port, "DDKFA")};  // as a handshake begins, but no more
      EXPECT_TRUE(silent_peers[0] >= 0 && silent_peers[1] >= 0);
    }
    const auto comm = make_tcp(rank, 2, "127.0.0.1", port, {.timeout_s = kLimit});
    comm->barrier();
    for (const int fd : silent_peers)
      if (fd >= 0) close(fd);
  });
}

TEST(TcpMeeting, OptionsThatDifferAreAnErrorOnEveryRank) {
  on_threads(2, [](int rank, std::uint16_t port) {
    const std::string message = message_of<CommError>([&] {
      (void)make_tcp(rank, 2, "127.0.0.1", port,
                     {.timeout_s = kLimit, .piece_bytes = rank == 1 ? 64 : 128});
    });
    EXPECT_TRUE(contains(message, "rank 1 issued #0 make_tcp(piece_bytes 64")) << message;
  });
}

TEST(TcpMeeting, RefusesImpossibleArguments) {
  EXPECT_THROW((void)make_tcp(2, 2, "127.0.0.1", 1), InvalidArgument);
  EXPECT_THROW((void)make_tcp(-1, 2, "127.0.0.1", 1), InvalidArgument);
  EXPECT_THROW((void)make_tcp(0, 2, "127.0.0.1", 0), InvalidArgument);
}

}  // namespace dkfac::comm::testing
