#include "dkfac/core/error.h"

#include "comm/cuda/device_ranks.h"
#include "support/host_waits.h"

namespace dkfac::comm::testing {

std::vector<int> sizes() { return {1}; }

void run_ranks_of(int /*size*/, const Options& options, const OwningBody& body) {
  body(make_self(options));
}

TEST(SelfOnDevice, NeverWaitsOnTheHost) {
  const auto comm = make_self();
  Context ctx(Device::cuda());
  Tensor x = on_device(ctx, std::vector<float>{1, 2, 3}),
         y = on_device(ctx, std::vector<float>{0, 0, 0});
  const std::vector<std::int64_t> counts{3};
  const auto before = dkfac::testing::host_waits();
  comm->all_reduce(x, ReduceOp::sum, ctx.stream());
  comm->reduce_scatter_v(x, counts, y, ctx.stream());
  comm->broadcast(y, 0, ctx.stream());
  EXPECT_EQ(dkfac::testing::host_waits(), before);
  EXPECT_EQ(on_host<float>(ctx, y), (std::vector<float>{1, 2, 3}));
}

TEST(SelfOnDevice, RefusesMemoryOfTheHostOnAStreamOfTheDevice) {
  const auto comm = make_self();
  Context ctx(Device::cuda());
  std::vector<float> x(3);
  EXPECT_THROW(comm->all_reduce(view(x), ReduceOp::sum, ctx.stream()), InvalidArgument);
}

TEST(SelfOnDevice, AbortReachesCallsOnTheDevice) {
  const auto comm = make_self();
  Context ctx(Device::cuda());
  Tensor x = on_device(ctx, std::vector<float>{1});
  comm->abort("enough");
  const std::string message =
      message_of<CommError>([&] { comm->all_reduce(x, ReduceOp::sum, ctx.stream()); });
  EXPECT_TRUE(contains(message, "enough")) << message;
}

}  // namespace dkfac::comm::testing
