#include "dkfac/comm/in_process.h"
#include "dkfac/comm/on_device.h"
#include "dkfac/core/error.h"

#include "comm/cuda/device_ranks.h"
#include "support/tcp_ranks.h"

// Host staging over threads and over TCP: no rank accesses another rank's device memory.
namespace dkfac::comm::testing {

std::vector<int> sizes() { return {1, 2, 3}; }

void run_ranks_of(int size, const Options& options, const OwningBody& body) {
  run_ranks(
      size, [&](const std::shared_ptr<Communicator>& comm) { body(make_host_staged(comm)); },
      options);
  run_tcp(size, options,
          [&](const std::shared_ptr<Communicator>& comm) { body(make_host_staged(comm)); });
}

TEST(HostStaged, SaysWhatItIs) {
  const auto comm = make_host_staged(make_self());
  EXPECT_EQ(comm->backend(), "host_staged");
  EXPECT_THROW((void)make_host_staged(nullptr), InvalidArgument);
}

TEST(HostStaged, ALimitOfTheInnerOneEndsACallOnTheDevice) {
  run_tcp(2, {.timeout_s = 1}, [](const std::shared_ptr<Communicator>& inner) {
    const auto comm = make_host_staged(inner);
    Context ctx(Device::cuda());
    Tensor x = on_device(ctx, std::vector<float>{1, 2});
    if (comm->rank() == 1)
      while (!comm->failed()) {
        try {
          (void)comm->progress();
        } catch (const CommError&) {
        }
      }
    const std::string message =
        message_of<CommError>([&] { comm->all_reduce(x, ReduceOp::sum, ctx.stream(), "late"); });
    EXPECT_TRUE(contains(message, "'late'")) << message;
    EXPECT_TRUE(comm->failed());
  });
}

TEST(HostStaged, AMismatchIsNamed) {
  run_ranks(2, [](const std::shared_ptr<Communicator>& inner) {
    const auto comm = make_host_staged(inner);
    Context ctx(Device::cuda());
    Tensor x = on_device(ctx, std::vector<float>(comm->rank() == 0 ? 8 : 9));
    const std::string message =
        message_of<CommError>([&] { comm->all_reduce(x, ReduceOp::sum, ctx.stream(), "x"); });
    EXPECT_TRUE(contains(message, "rank 1 issued #1 all_reduce(sum) f32 x 9 'x'")) << message;
  });
}

}  // namespace dkfac::comm::testing
