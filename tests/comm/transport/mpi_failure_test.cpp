#include <chrono>
#include <thread>

#include "dkfac/comm/mpi.h"
#include "dkfac/core/error.h"
#include "dkfac/core/stream.h"

#include "comm/conformance.h"

/// Each test breaks its own communicator; MPI itself stays usable, so the ranks can synchronize at
/// the end of a test.
namespace dkfac::comm::testing {

namespace {

constexpr double kLimit = 20;  ///< Time limit in seconds for immediate failures.

/// Runs body on this rank; it has to fail, and every later call too. Returns the message.
std::string failure(const Body& body, Options options) {
  const auto comm = make_mpi(MPI_COMM_WORLD, options);
  MPI_Barrier(MPI_COMM_WORLD);  // keeps the failure of a fast rank from reaching the calls above
  const std::string message = message_of<CommError>([&] { body(*comm); });
  EXPECT_THROW(comm->barrier(), CommError) << "unusable after a failure";
  EXPECT_TRUE(comm->failed());
  MPI_Barrier(MPI_COMM_WORLD);
  return message;
}

Options full_check(double limit_s = kLimit) {
  return {.timeout_s = limit_s, .check = Check::full, .piece_bytes = 64};
}

void reduce(Communicator& comm, std::size_t count, std::string_view name) {
  std::vector<float> x(count, 1);
  comm.all_reduce(view(x), ReduceOp::sum, Stream::cpu(), name);
}

void expect_contains(const std::string& message, std::string_view part) {
  EXPECT_TRUE(contains(message, part)) << message;
}

}  // namespace

TEST(MpiMismatch, OtherOperationIsNamed) {
  const std::string message = failure(
      [](Communicator& comm) {
        if (comm.rank() != 1) return reduce(comm, 8, "a.fc");
        std::vector<float> x(8);
        comm.broadcast(view(x), 0, Stream::cpu(), "w.fc");
      },
      full_check());
  expect_contains(message, "rank 1 issued #1 broadcast(root 0) f32 x 8 'w.fc'");
  expect_contains(message, "issued #1 all_reduce(sum) f32 x 8 'a.fc'");
}

TEST(MpiMismatch, ASkippedCallIsNamed) {
  const std::string message = failure(
      [](Communicator& comm) {
        if (comm.rank() != 1) reduce(comm, 8, "first");
        reduce(comm, 8, "second");
      },
      full_check());
  expect_contains(message, "rank 1 issued #1 all_reduce(sum) f32 x 8 'second'");
  expect_contains(message, "'first'");
}

TEST(MpiMismatch, AnotherOrderIsNamed) {
  const std::string message = failure(
      [](Communicator& comm) {
        reduce(comm, 8, comm.rank() == 1 ? "second" : "first");
        reduce(comm, 8, comm.rank() == 1 ? "first" : "second");
      },
      full_check());
  expect_contains(message, "rank 1 issued #1 all_reduce(sum) f32 x 8 'second'");
}

TEST(MpiMismatch, AnotherCountIsNamedBeforeAnyDataMoves) {
  std::vector<float> x(100'000, 1);
  const std::string message = failure(
      [&](Communicator& comm) {
        const std::int64_t count = comm.rank() == 1 ? 100'000 : 100;
        comm.all_reduce(view(x).slice(0, 0, count), ReduceOp::sum, Stream::cpu(), "x");
      },
      full_check());
  expect_contains(message, "rank 1 issued #1 all_reduce(sum) f32 x 100000 'x'");
  EXPECT_EQ(x, std::vector<float>(100'000, 1));
}

TEST(MpiMismatch, AnotherDtypeIsNamed) {
  const std::string message = failure(
      [](Communicator& comm) {
        if (comm.rank() != 1) return reduce(comm, 8, "x");
        std::vector<double> x(8);
        comm.all_reduce(view(x), ReduceOp::sum, Stream::cpu(), "x");
      },
      full_check());
  expect_contains(message, "rank 1 issued #1 all_reduce(sum) f64 x 8 'x'");
}

TEST(MpiMismatch, WithoutComparisonAnotherCountStillIsAnErrorOnEveryRank) {
  // Check::hash detects messages of another size, or else the time limit does.
  failure([](Communicator& comm) { reduce(comm, comm.rank() == 1 ? 24 : 8, "x"); },
          {.timeout_s = kLimit});
}

TEST(MpiMismatch, WithoutComparisonAShorterMessageIsAnError) {
  // MPI itself accepts a message that is shorter than its buffer.
  const std::string message = failure(
      [](Communicator& comm) {
        std::vector<float> x(comm.rank() == 1 ? 8 : 24);
        comm.broadcast(view(x), 1, Stream::cpu(), "x");
        comm.barrier();
      },
      {.timeout_s = kLimit});
  expect_contains(message, "rank 1 sent a piece of 32 bytes where 96 were expected");
}

TEST(MpiTimeLimit, NamesOperationRankLimitAndWhoIsMissing) {
  for (const Check check : {Check::full, Check::hash}) {
    const std::string message = failure(
        [](Communicator& comm) {
          while (comm.rank() == 1) {  // makes no call, but receives the failure
            comm.progress();
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
          }
          std::vector<float> x(8);
          std::vector<std::int64_t> counts(static_cast<std::size_t>(comm.size()), 8);
          std::vector<float> all(8 * counts.size());
          comm.all_gather_v(view(x), counts, view(all), Stream::cpu(), "late");
        },
        {.timeout_s = 1, .check = check});
    expect_contains(message, "[all_gather_v] rank ");
    expect_contains(message, "waited 1 s");
    expect_contains(message, "'late'; rank 1 has not ");
  }
}

TEST(MpiTimeLimit, NamesTheLateRankOfASumThatMostRanksOwnNothingOf) {
  const std::string message = failure(
      [](Communicator& comm) {
        while (comm.rank() == comm.size() - 1) {
          comm.progress();
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        reduce(comm, 1, "loss");
      },
      {.timeout_s = 1});
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  expect_contains(message, "'loss'; rank " + std::to_string(size - 1) + " has not ");
}

TEST(MpiTimeLimit, HoldsForABarrierToo) {
  const std::string message = failure(
      [](Communicator& comm) {
        while (comm.rank() == 0) {
          comm.progress();
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        comm.barrier("epoch");
      },
      {.timeout_s = 1});
  expect_contains(message, "barrier 'epoch'; rank 0 has not arrived");
}

TEST(MpiAbort, ReachesPeersLongBeforeTheTimeLimit) {
  const std::string message = failure(
      [](Communicator& comm) {
        if (comm.rank() == 1) comm.abort("loss is not finite");
        for (;;) comm.barrier();
      },
      full_check(100));
  expect_contains(message, "rank 1 aborted the group: loss is not finite");
}

TEST(MpiAbort, OfTheWorldReachesSubgroups) {
  const std::string message = failure(
      [](Communicator& comm) {
        const auto part = comm.split(comm.rank() / 2);
        MPI_Barrier(MPI_COMM_WORLD);
        if (comm.rank() == comm.size() - 1) comm.abort("disk full");
        for (;;) part->barrier();
      },
      full_check(100));
  expect_contains(message, "disk full");
}

TEST(MpiAbort, OfASubgroupNamesTheRankOfTheJob) {
  failure(
      [](Communicator& comm) {
        const auto part = comm.split(0, -comm.rank());  // in the opposite order
        MPI_Barrier(MPI_COMM_WORLD);
        const std::string message = message_of<CommError>([&] {
          if (part->rank() == 0) part->abort("disk full");
          for (;;) part->barrier();
        });
        expect_contains(
            message, "rank " + std::to_string(comm.size() - 1) + " aborted the group: disk full");
        MPI_Barrier(MPI_COMM_WORLD);
        comm.abort("end of the test");
        comm.barrier();
      },
      full_check(100));
}

TEST(MpiDropping, AStreamWithUnfinishedWorkFailsThePeers) {
  const std::string message = failure(
      [](Communicator& comm) {
        std::vector<float> x(1000, 1);
        if (comm.rank() == 1) {
          const OwnedStream stream(Device::cpu());
          comm.all_reduce(view(x), ReduceOp::sum, stream, "x");
        }
        comm.all_reduce(view(x), ReduceOp::sum, Stream::cpu(), "x");
        comm.barrier();
      },
      full_check(100));
  expect_contains(message, "rank 1 dropped #1 all_reduce(sum) f32 x 1000 'x'");
}

}  // namespace dkfac::comm::testing
