#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"

#include "comm/cuda/device_ranks.h"
#include "comm/transport/in_process_group.h"
#include "support/host_waits.h"

// Ranks are threads that share one device.
namespace dkfac::comm::testing {

std::vector<int> sizes() { return {1, 2, 3, 4, 7}; }

void run_ranks_of(int size, const Options& options, const OwningBody& body) {
  run_ranks(size, body, options);
}

namespace {

constexpr double kLimit = 20;  ///< Time limit in seconds for immediate failures.

std::vector<std::string> failures(int size,
                                  const std::function<void(Communicator&, Context&)>& body,
                                  double limit_s = kLimit) {
  std::vector<std::string> messages(static_cast<std::size_t>(size));
  run_ranks(size,
            [&](const std::shared_ptr<Communicator>& comm) {
              Context ctx(Device::cuda());
              messages[static_cast<std::size_t>(comm->rank())] =
                  message_of<CommError>([&] { body(*comm, ctx); });
              EXPECT_TRUE(comm->failed());
              EXPECT_THROW(comm->barrier(), CommError) << "unusable after a failure";
            },
            {.timeout_s = limit_s});
  return messages;
}

void expect_all_contain(const std::vector<std::string>& messages, std::string_view part) {
  for (const std::string& message : messages) EXPECT_TRUE(contains(message, part)) << message;
}

void reduce(Communicator& comm, Context& ctx, std::size_t count, std::string_view name) {
  Tensor x = on_device(ctx, std::vector<float>(count, 1));
  comm.all_reduce(x, ReduceOp::sum, ctx.stream(), name);
}

}  // namespace

TEST(InProcessOnDevice, GivesTheBitsOfTheHost) {
  constexpr std::int64_t kCount = 4099;
  run_ranks(5, [&](const std::shared_ptr<Communicator>& comm) {
    Context ctx(Device::cuda());
    const auto compare = [&](auto type) {
      using T = decltype(type);
      std::vector<T> x = values_of<T>(comm->rank(), kCount);
      Tensor d = on_device(ctx, x);
      comm->all_reduce(view(x), ReduceOp::sum, Stream::cpu());
      comm->all_reduce(d, ReduceOp::sum, ctx.stream());
      EXPECT_EQ(on_host<T>(ctx, d), x) << dtype_of<T>;
    };
    compare(double{});
    compare(float{});
    compare(bf16{});
    compare(f16{});
    compare(std::int32_t{});
  });
}

TEST(InProcessOnDevice, NeverWaitsForTheDevice) {
  std::atomic<std::int64_t> before = 0, after = 0;
  run_ranks(3, [&](const std::shared_ptr<Communicator>& comm) {
    Context ctx(Device::cuda());
    Tensor x = on_device(ctx, values_of<float>(comm->rank(), 100));
    Tensor part = Tensor::empty(ctx, {comm->rank() == 1 ? 100 : 0});
    comm->barrier();
    before = dkfac::testing::host_waits();
    comm->barrier();
    const std::vector<std::int64_t> counts{0, 100, 0};
    comm->all_reduce(x, ReduceOp::sum, ctx.stream());
    comm->broadcast(x, 2, ctx.stream());
    comm->reduce_scatter_v(x, counts, part, ctx.stream());
    comm->all_gather_v(part, counts, x, ctx.stream());
    comm->barrier();
    after = dkfac::testing::host_waits();
    comm->barrier();
    ctx.stream().synchronize();
  });
  EXPECT_EQ(after, before);
}

TEST(InProcessOnDevice, MismatchesAreNamedBeforeDataMoves) {
  expect_all_contain(
      failures(3, [](Communicator& comm,
                     Context& ctx) { reduce(comm, ctx, comm.rank() == 1 ? 9 : 8, "a.fc"); }),
      "rank 1 issued #1 all_reduce(sum) f32 x 9 'a.fc'");
}

TEST(InProcessOnDevice, HostAndDeviceMemoryTogetherAreNamed) {
  expect_all_contain(failures(2,
                              [](Communicator& comm, Context& ctx) {
                                if (comm.rank() == 0) return reduce(comm, ctx, 8, "x");
                                std::vector<float> x(8);
                                comm.all_reduce(view(x), ReduceOp::sum, Stream::cpu(), "x");
                              }),
                     "cuda:0 on rank 0, cpu on rank 1");
}

TEST(InProcessOnDevice, ATimeLimitNamesWhoIsMissing) {
  const auto messages = failures(
      3,
      [](Communicator& comm, Context& ctx) {
        if (comm.rank() == 1)
          while (!comm.failed()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        reduce(comm, ctx, 8, "late");
      },
      1);
  expect_all_contain(messages, "waited 1 s");
  expect_all_contain(messages, "'late'; rank 1 has not arrived");
}

TEST(InProcessOnDevice, AbortReachesRanksThatWait) {
  const auto messages = failures(3, [](Communicator& comm, Context& ctx) {
    if (comm.rank() == 2) comm.abort("loss is not finite");
    for (;;) reduce(comm, ctx, 8, "x");
  });
  expect_all_contain(messages, "rank 2 aborted the group: loss is not finite");
}

/// A peer has enqueued its share when the group fails: its writes to this rank's memory precede
/// later work on this rank's stream.
TEST(InProcessOnDevice, AFailureBehindTheMeetingKeepsTheOrderOfPeers) {
  constexpr std::int64_t kCount = 1 << 20;
  Context mine(Device::cuda()), theirs(Device::cuda());
  Tensor result = Tensor::zeros(mine, {kCount}), source = Tensor::zeros(theirs, {kCount});
  ops::fill(theirs, source, 3);
  mine.stream().synchronize();
  theirs.stream().synchronize();
  const auto group = std::make_shared<InProcessGroup>(std::vector<int>{0, 1}, nullptr);
  const auto call_on = [](Context& ctx) {
    HostCall call;
    call.info.sequence = 1;
    call.stream = ctx.stream();
    return call;
  };
  const HostCall here = call_on(mine), there = call_on(theirs);
  const auto side = [] { return std::make_shared<DeviceSide>(Device::cuda()); };
  const auto my_side = side(), their_side = side();
  group->arrive(0, here, my_side);
  group->arrive(1, there, their_side);
  Rendezvous* const point = group->rendezvous(there);
  ASSERT_NE(point, nullptr);
  group->begin_move(*point);
  ops::copy(theirs, source, result);
  their_side->done.record(there.stream);
  group->end_move(*point);
  group->withdraw(0, here, "rank 0 gives up");
  EXPECT_EQ(on_host<float>(mine, result), std::vector<float>(kCount, 3));
  group->withdraw(1, there, "so does rank 1");
}

TEST(InProcessOnDevice, ARankMayLeaveAndFreeItsMemoryAtOnce) {
  for (int round = 0; round < 20; ++round) {
    run_ranks(3, [&](std::shared_ptr<Communicator> comm) {
      Context ctx(Device::cuda());
      Tensor x = on_device(ctx, values_of<double>(comm->rank(), 200));
      comm->all_reduce(x, ReduceOp::sum, ctx.stream());
      if (comm->rank() != round % 3) {
        comm.reset();
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      EXPECT_EQ(on_host<double>(ctx, x), sums_of<double>(3, 200));
    });
  }
}

}  // namespace dkfac::comm::testing
