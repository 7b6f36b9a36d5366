#include <chrono>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/error.h"
#include "dkfac/core/stream.h"

#include "comm/conformance.h"

namespace dkfac::comm::testing {

namespace {

constexpr double kLimit = 20;  ///< Time limit in seconds for immediate failures.

/// Runs body on every rank and returns what it threw there, by rank; every rank has to throw.
std::vector<std::string> failures(int size, const Body& body, double limit_s = kLimit) {
  std::vector<std::string> messages(static_cast<std::size_t>(size));
  run_ranks(size,
            [&](const std::shared_ptr<Communicator>& comm) {
              messages[static_cast<std::size_t>(comm->rank())] =
                  message_of<CommError>([&] { body(*comm); });
              EXPECT_TRUE(comm->failed());
              EXPECT_THROW(comm->barrier(), CommError) << "unusable after a failure";
            },
            {.timeout_s = limit_s, .piece_bytes = 64});
  return messages;
}

void expect_all_contain(const std::vector<std::string>& messages, std::string_view part) {
  for (const std::string& message : messages) EXPECT_TRUE(contains(message, part)) << message;
}

void reduce(Communicator& comm, std::size_t count, std::string_view name,
            const Stream& stream = Stream::cpu()) {
  std::vector<float> x(count, 1);
  comm.all_reduce(view(x), ReduceOp::sum, stream, name);
}

/// Runs body on ranks 3 and 2, which are ranks 0 and 1 of a group of their own, and returns what it
/// threw there; both have to throw.
std::vector<std::string> failures_in_a_part(const Body& body, double limit_s = kLimit) {
  std::vector<std::string> messages(2);
  run_ranks(4,
            [&](const std::shared_ptr<Communicator>& comm) {
              const auto part = comm->split(comm->rank() / 2, -comm->rank());
              if (comm->rank() < 2) return;
              messages[static_cast<std::size_t>(part->rank())] =
                  message_of<CommError>([&] { body(*part); });
            },
            {.timeout_s = limit_s});
  return messages;
}

}  // namespace

TEST(Mismatch, OtherOperationIsNamedOnEveryRank) {
  const auto messages = failures(3, [](Communicator& comm) {
    if (comm.rank() != 1) return reduce(comm, 8, "a.fc");
    std::vector<float> x(8);
    comm.broadcast(view(x), 0, Stream::cpu(), "w.fc");
  });
  expect_all_contain(messages, "rank 1 issued #1 broadcast(root 0) f32 x 8 'w.fc'");
  expect_all_contain(messages, "ranks 0, 2 issued #1 all_reduce(sum) f32 x 8 'a.fc'");
}

TEST(Mismatch, ASkippedCallIsNamedAtTheNextOne) {
  const auto messages = failures(2, [](Communicator& comm) {
    if (comm.rank() == 0) reduce(comm, 8, "first");
    reduce(comm, 8, "second");
  });
  expect_all_contain(messages, "rank 0 issued #1 all_reduce(sum) f32 x 8 'first'");
  expect_all_contain(messages, "rank 1 issued #1 all_reduce(sum) f32 x 8 'second'");
}

TEST(Mismatch, AnotherOrderIsNamed) {
  const auto messages = failures(2, [](Communicator& comm) {
    reduce(comm, 8, comm.rank() == 0 ? "first" : "second");
    reduce(comm, 8, comm.rank() == 0 ? "second" : "first");
  });
  expect_all_contain(messages, "'first', but rank 1 issued #1");
}

TEST(Mismatch, AnotherCountIsNamed) {
  const auto messages =
      failures(2, [](Communicator& comm) { reduce(comm, comm.rank() == 0 ? 8 : 100'000, "x"); });
  expect_all_contain(messages, "f32 x 100000 'x'");
}

TEST(Mismatch, AnotherDtypeIsNamed) {
  const auto messages = failures(2, [](Communicator& comm) {
    if (comm.rank() == 0) return reduce(comm, 8, "x");
    std::vector<double> x(8);
    comm.all_reduce(view(x), ReduceOp::sum, Stream::cpu(), "x");
  });
  expect_all_contain(messages, "f64 x 8 'x'");
}

TEST(Mismatch, OtherSegmentCountsAreSaidSo) {
  const auto messages = failures(2, [](Communicator& comm) {
    const std::vector<std::int64_t> counts =
        comm.rank() == 0 ? std::vector<std::int64_t>{6, 2} : std::vector<std::int64_t>{4, 4};
    std::vector<float> x(8), out(comm.rank() == 0 ? 6 : 4);
    comm.reduce_scatter_v(view(x), counts, view(out), Stream::cpu(), "x");
  });
  expect_all_contain(messages, "other segment counts");
}

TEST(Mismatch, AnotherRootIsNamed) {
  const auto messages = failures(3, [](Communicator& comm) {
    std::vector<float> x(8);
    comm.broadcast(view(x), comm.rank() == 2 ? 1 : 0, Stream::cpu(), "x");
  });
  expect_all_contain(messages, "rank 2 issued #1 broadcast(root 1)");
}

TEST(Mismatch, OnAQueueItComesFromProgress) {
  const auto messages = failures(2, [](Communicator& comm) {
    const OwnedStream stream(Device::cpu());
    std::vector<float> x(8);
    comm.all_reduce(view(x), ReduceOp::sum, stream, comm.rank() == 0 ? "a" : "b");
    while (!comm.progress()) std::this_thread::yield();
  });
  expect_all_contain(messages, "the ranks disagree");
}

TEST(TimeLimit, NamesOperationRankLimitAndWhoIsMissing) {
  const auto messages = failures(
      3,
      [&](Communicator& comm) {
        if (comm.rank() == 1) {
          // Later than the limit, and then its own call fails too.
          while (!comm.failed()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        reduce(comm, 8, "late");
      },
      1);
  expect_all_contain(messages, "[all_reduce(sum)] rank ");
  expect_all_contain(messages, "waited 1 s");
  expect_all_contain(messages, "#1 all_reduce(sum) f32 x 8 'late'; rank 1 has not arrived");
}

TEST(TimeLimit, CountsFromTheFirstAdvanceNotFromTheCall) {
  run_ranks(2,
            [](const std::shared_ptr<Communicator>& comm) {
              const OwnedStream stream(Device::cpu());
              std::vector<float> x(8, 1);
              comm->all_reduce(view(x), ReduceOp::sum, stream);
              std::this_thread::sleep_for(std::chrono::milliseconds(1200));
              stream.view().synchronize();
              EXPECT_EQ(x, std::vector<float>(8, 2));
            },
            {.timeout_s = 1});
}

TEST(Leaving, AMissingCallAtTheEndIsNamedAtOnce) {
  const auto ranks = [] { return make_in_process(2, {.timeout_s = 100}); };
  auto comms = ranks();
  std::thread leaver([comm = std::move(comms[1])]() mutable {
    reduce(*comm, 4, "shared");
    comm.reset();
  });
  reduce(*comms[0], 4, "shared");
  const std::string message = message_of<CommError>([&] { reduce(*comms[0], 4, "one too many"); });
  leaver.join();
  EXPECT_TRUE(contains(message, "rank 1 left the group after 1 calls")) << message;
  EXPECT_TRUE(contains(message, "'one too many'")) << message;
}

TEST(Abort, ReachesPendingAndLaterCallsWithRankAndReason) {
  const auto messages = failures(3, [](Communicator& comm) {
    if (comm.rank() == 2) comm.abort("loss is not finite");
    comm.barrier();
  });
  expect_all_contain(messages, "rank 2 aborted the group: loss is not finite");
}

TEST(Abort, OfTheWorldReachesSubgroups) {
  run_ranks(4,
            [](const std::shared_ptr<Communicator>& comm) {
              const auto part = comm->split(comm->rank() / 2);
              if (comm->rank() == 3) {
                comm->abort("disk full");
                return;
              }
              // Ranks 0 and 1 wait for each other only; rank 2 waits for rank 3.
              const std::string message = message_of<CommError>([&] {
                for (;;) part->barrier();
              });
              EXPECT_TRUE(contains(message, "disk full")) << message;
              EXPECT_TRUE(part->failed());
            },
            {.timeout_s = 60});
}

TEST(Abort, TheFirstReasonStays) {
  const auto comms = make_in_process(2);
  comms[0]->abort("first");
  comms[1]->abort("second");
  for (const auto& comm : comms) {
    const std::string message = message_of<CommError>([&] { comm->progress(); });
    EXPECT_TRUE(contains(message, "first") && !contains(message, "second")) << message;
  }
}

TEST(Dropping, AStreamWithUnfinishedWorkFailsThePeers) {
  const auto messages = failures(2, [](Communicator& comm) {
    std::vector<float> x(1000, 1);
    if (comm.rank() == 0) {
      const OwnedStream stream(Device::cpu());
      comm.all_reduce(view(x), ReduceOp::sum, stream, "x");
      comm.progress();
    }
    comm.all_reduce(view(x), ReduceOp::sum, Stream::cpu(), "x");
  });
  expect_all_contain(messages, "rank 0 dropped #1 all_reduce(sum) f32 x 1000 'x'");
}

TEST(Dropping, ByAnExceptionPointsToItInsteadOfAdvising) {
  const auto messages = failures(2, [](Communicator& comm) {
    std::vector<float> x(1000, 1);
    try {
      const OwnedStream stream(Device::cpu());
      if (comm.rank() == 0) {
        comm.all_reduce(view(x), ReduceOp::sum, stream, "x");
        throw std::out_of_range("no such label");
      }
    } catch (const std::out_of_range&) {
      // A program would end by it.
    }
    comm.all_reduce(view(x), ReduceOp::sum, Stream::cpu(), "x");
  });
  expect_all_contain(messages, "rank 0 dropped #1 all_reduce(sum) f32 x 1000 'x'");
  expect_all_contain(messages, "an exception was on its way there");
}

TEST(Subgroups, ErrorsNameRanksOfTheJob) {
  expect_all_contain(failures_in_a_part([](Communicator& part) {
                       if (part.rank() == 1) part.abort("disk full");
                       part.barrier();
                     }),
                     "rank 2 aborted the group: disk full");
  expect_all_contain(failures_in_a_part([](Communicator& part) {
                       reduce(part, 8, part.rank() == 1 ? "second" : "first");
                     }),
                     "rank 3 issued #1 all_reduce(sum) f32 x 8 'first', but rank 2 issued #1");
  expect_all_contain(failures_in_a_part([](Communicator& part) {
                       std::vector<float> x(1000, 1);
                       if (part.rank() == 1) {
                         const OwnedStream stream(Device::cpu());
                         part.all_reduce(view(x), ReduceOp::sum, stream, "x");
                       }
                       reduce(part, 8, "y");
                     }),
                     "rank 2 dropped #1 all_reduce(sum) f32 x 1000 'x'");
  const auto late = [](Communicator& part) {
    while (part.rank() == 1 && !part.failed())
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    part.barrier();
  };
  expect_all_contain(failures_in_a_part(late, 1),
                     "[barrier] rank 3 waited 1 s (timeout_s) at #1 barrier; rank 2 has not");
}

TEST(Subgroups, ARankThatLeftIsNamedByItsRankInTheJob) {
  run_ranks(4, [](const std::shared_ptr<Communicator>& comm) {
    const auto part = comm->split(comm->rank() / 2);
    if (comm->rank() != 2) return;
    const std::string message = message_of<CommError>([&] { part->barrier(); });
    EXPECT_TRUE(contains(message, "rank 3 left the group after 0 calls")) << message;
  });
}

// For AddressSanitizer: no peer may still read the buffer of a rank that withdraws.
TEST(Dropping, LeavesTheMemoryOfARankThatGaveUpUntouched) {
  for (int round = 0; round < 30; ++round) {
    const auto messages = failures(3, [&](Communicator& comm) {
      std::vector<double> x(2'000, 1);
      if (comm.rank() == 1) {
        const OwnedStream stream(Device::cpu());
        comm.all_reduce(view(x), ReduceOp::sum, stream, "x");
        for (int i = 0; i < round; ++i) comm.progress();
        comm.abort("gave up");
        return comm.barrier();
      }
      comm.all_reduce(view(x), ReduceOp::sum, Stream::cpu(), "x");
      comm.barrier();
    });
    expect_all_contain(messages, "rank 1 aborted the group: gave up");
  }
}

}  // namespace dkfac::comm::testing
