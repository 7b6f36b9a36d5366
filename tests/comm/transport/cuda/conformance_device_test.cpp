#include <algorithm>
#include <cmath>

#include "dkfac/core/stream.h"

#include "comm/cuda/device_ranks.h"

namespace dkfac::comm::testing {

class DeviceConformance : public ::testing::TestWithParam<int> {
 protected:
  void run(const OwningBody& body) {
    run_ranks_of(GetParam(), {.timeout_s = 30, .check = Check::full}, body);
  }
};

TEST_P(DeviceConformance, TakesDeviceMemory) {
  run([](const std::shared_ptr<Communicator>& comm) {
    EXPECT_TRUE(comm->supports(device_of(*comm)));
    EXPECT_TRUE(comm->supports(Device::cpu()));
  });
}

// Nothing waits between the steps: only the stream orders them.
TEST_P(DeviceConformance, ACallIsOrderedAmongTheWorkOfItsStream) {
  run([](const std::shared_ptr<Communicator>& comm) {
    Context ctx(device_of(*comm));
    const int size = comm->size();
    Tensor x = Tensor::empty(ctx, {1000}, DType::f64);
    put(ctx, x, std::vector<double>(1000, comm->rank() + 1));
    comm->all_reduce(x, ReduceOp::sum, ctx.stream(), "x");
    Tensor y = Tensor::empty(ctx, {1000}, DType::f64);
    std::vector<std::int64_t> counts(static_cast<std::size_t>(size));
    counts[0] = 1000;
    const bool owner = comm->rank() == 0;
    comm->reduce_scatter_v(x, counts, owner ? y.view() : TensorView{}, ctx.stream(), "y");
    put(ctx, x, std::vector<double>(1000, -1.0 - comm->rank()));
    comm->all_reduce(x, ReduceOp::max, ctx.stream(), "z");
    EXPECT_EQ(on_host<double>(ctx, x), std::vector<double>(1000, -1));
    if (owner) {
      EXPECT_EQ(on_host<double>(ctx, y), std::vector<double>(1000, size * size * (size + 1) / 2.0));
    }
    comm->barrier();
  });
}

// A buffer that is overwritten at once was read by the peers before.
TEST_P(DeviceConformance, BuffersBelongToTheStreamUntilTheCallIsDone) {
  run([](const std::shared_ptr<Communicator>& comm) {
    Context ctx(device_of(*comm));
    std::vector<std::int64_t> counts(static_cast<std::size_t>(comm->size()), 3);
    Tensor all = Tensor::empty(ctx, {3 * comm->size()}, DType::f32);
    Tensor x = Tensor::empty(ctx, {3}, DType::f32);
    std::vector<float> expected;
    for (int r = 0; r < comm->size(); ++r)
      expected.insert(expected.end(), 3, static_cast<float>(r + 10));
    for (int round = 0; round < 3; ++round) {
      put(ctx, x, std::vector<float>(3, static_cast<float>(comm->rank() + 10)));
      comm->all_gather_v(x, counts, all, ctx.stream(), "x");
      put(ctx, x, std::vector<float>(3, std::nanf("")));
    }
    EXPECT_EQ(on_host<float>(ctx, all), expected);
    comm->barrier();
  });
}

TEST_P(DeviceConformance, CallsKeepTheirOrderOverStreams) {
  run([](const std::shared_ptr<Communicator>& comm) {
    Context first(device_of(*comm)), second(device_of(*comm));
    Tensor x = on_device(first, std::vector<double>{1});
    comm->all_reduce(x, ReduceOp::sum, first.stream());
    comm->all_reduce(x, ReduceOp::sum, second.stream());  // reads what the first one writes
    comm->all_reduce(x, ReduceOp::sum, first.stream());
    EXPECT_EQ(on_host<double>(first, x)[0], std::pow(comm->size(), 3));
  });
}

TEST_P(DeviceConformance, TwoCommunicatorsShareAStream) {
  run([](const std::shared_ptr<Communicator>& comm) {
    const auto part = comm->split(comm->rank() / 2);
    Context ctx(device_of(*comm));
    Tensor x = on_device(ctx, std::vector<double>{1});
    part->all_reduce(x, ReduceOp::sum, ctx.stream());
    comm->all_reduce(x, ReduceOp::sum, ctx.stream());
    double expected = 0;
    for (int r = 0; r < comm->size(); ++r) expected += std::min(2, comm->size() - r / 2 * 2);
    EXPECT_EQ(on_host<double>(ctx, x)[0], expected);
    comm->barrier();
  });
}

TEST_P(DeviceConformance, TakesHostMemoryInBetween) {
  run([](const std::shared_ptr<Communicator>& comm) {
    Context ctx(device_of(*comm));
    Tensor x = on_device(ctx, values_of<float>(comm->rank(), 77));
    std::vector<double> y{1};
    comm->all_reduce(x, ReduceOp::sum, ctx.stream());
    comm->all_reduce(view(y), ReduceOp::sum, Stream::cpu());
    comm->broadcast(x, comm->size() - 1, ctx.stream());
    EXPECT_EQ(y[0], comm->size());
    EXPECT_EQ(on_host<float>(ctx, x), sums_of<float>(comm->size(), 77));
    comm->barrier();
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, DeviceConformance, ::testing::ValuesIn(sizes()),
                         [](const auto& test) { return std::to_string(test.param) + "Ranks"; });

}  // namespace dkfac::comm::testing
