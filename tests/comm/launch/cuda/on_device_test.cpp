#include "dkfac/comm/on_device.h"

#include <cstdlib>

#include "dkfac/comm/hierarchical.h"
#include "dkfac/comm/in_process.h"
#include "dkfac/comm/nccl.h"
#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"

#include "comm/cuda/device_ranks.h"
#include "support/device_faults.h"
#include "support/host_waits.h"
#include "support/tcp_ranks.h"

// Choices of on_device(). There are four emulated devices.
namespace dkfac::comm::testing {
namespace {

const bool emulated_devices = setenv("DKFAC_EMULATED_DEVICES", "4", 1) == 0;

bool has_devices(int count) {
  return emulated_devices && available_devices().size() > static_cast<std::size_t>(count);
}

/// Expects that the chosen communicator sums memory of the device.
void expect_sums(Communicator& comm, Device device) {
  EXPECT_TRUE(comm.supports(device));
  Context ctx(device);
  // Without a release of memory, which threads that stand for processes would share: it follows the
  // streams of all of them.
  Tensor x = Tensor::empty(ctx, {1}, DType::f64);
  ops::fill(ctx, x, comm.rank() + 1.0);
  comm.all_reduce(x, ReduceOp::sum, ctx.stream());
  EXPECT_EQ(on_host<double>(ctx, x)[0], comm.size() * (comm.size() + 1) / 2.0);
  comm.barrier();
}

void expect_backend(const std::shared_ptr<Communicator>& host, Device device, DeviceComm choice,
                    std::string_view backend) {
  const auto comm = comm::on_device(host, device, choice);
  EXPECT_EQ(comm->backend(), backend);
  expect_sums(*comm, device);
}

}  // namespace

TEST(OnDevice, OneRankStaysAlone) {
  expect_backend(make_self(), Device::cuda(), DeviceComm::automatic, "self");
  expect_backend(make_self(), Device::cuda(), DeviceComm::host_staged, "host_staged");
  if (is_available("nccl")) expect_backend(make_self(), Device::cuda(), DeviceComm::nccl, "nccl");
}

TEST(OnDevice, ThreadsShareAGpu) {
  run_ranks(3, [](const std::shared_ptr<Communicator>& comm) {
    expect_backend(comm, Device::cuda(), DeviceComm::automatic, "in_process");
  });
  run_ranks(3, [](const std::shared_ptr<Communicator>& comm) {
    expect_backend(comm, Device::cuda(), DeviceComm::host_staged, "host_staged");
  });
}

TEST(OnDevice, ProcessesThatShareAGpuGoByTheHost) {
  run_tcp(2, {}, [](const std::shared_ptr<Communicator>& comm) {
    expect_backend(comm, Device::cuda(), DeviceComm::automatic, "host_staged");
  });
}

TEST(OnDevice, OneGpuForEachRankIsNccl) {
  if (!has_devices(2)) GTEST_SKIP() << "two ranks need two GPUs";
  const char* const expected = is_available("nccl") ? "nccl" : "host_staged";
  const auto body = [&](const std::shared_ptr<Communicator>& comm) {
    expect_backend(comm, Device::cuda(comm->rank()), DeviceComm::automatic, expected);
  };
  run_ranks(2, body);
  run_tcp(2, {}, body);
}

TEST(OnDevice, GoesByTheHostInTheLevelsThatTheHostHas) {
  run_tcp(4, {}, [](const std::shared_ptr<Communicator>& world) {
    const Hierarchy levels = make_hierarchical(world, 2);
    const auto comm = comm::on_device(levels.comm, Device::cuda());
    EXPECT_EQ(comm->backend(), "host_staged");
    Context ctx(Device::cuda());
    Tensor x = testing::on_device(ctx, std::vector<double>(64, comm->rank() + 1.0));
    const std::uint64_t before = levels.outer->bytes();
    comm->all_reduce(x, ReduceOp::sum, ctx.stream());
    EXPECT_EQ(on_host<double>(ctx, x), std::vector<double>(64, 10));
    EXPECT_EQ(levels.outer->bytes() - before, 64 * sizeof(double) / 2) << "half of it each";
    comm->barrier();
  });
}

TEST(OnDevice, WhatItHasMadeIsGivenBack) {
  run_tcp(2, {}, [](const std::shared_ptr<Communicator>& comm) {
    const Device device = has_devices(2) ? Device::cuda(comm->rank()) : Device::cuda();
    const auto first = comm::on_device(comm, device);
    EXPECT_EQ(comm::on_device(first, device), first);
  });
}

TEST(OnDevice, NcclOnASharedGpuIsRefusedWithAWayOut) {
  if (!is_available("nccl")) GTEST_SKIP() << "this build has no NCCL";
  run_ranks(2, [](const std::shared_ptr<Communicator>& comm) {
    const auto message = message_of<InvalidArgument>(
        [&] { (void)comm::on_device(comm, Device::cuda(), DeviceComm::nccl); });
    EXPECT_TRUE(contains(message, "ranks 0, 1 have the same GPU")) << message;
    EXPECT_TRUE(contains(message, "make_host_staged")) << message;
    expect_backend(comm, Device::cuda(), DeviceComm::automatic, "in_process");
  });
}

/// The limit is longer than a test may take: none of these waits for it.
TEST(OnDevice, ACpuAmongGpusIsNamedByAllAtOnce) {
  const auto refuses = [](const std::shared_ptr<Communicator>& comm, auto make) {
    const Device device = comm->rank() == 1 ? Device::cpu() : Device::cuda();
    const auto message = message_of<InvalidArgument>([&] { (void)make(comm, device); });
    EXPECT_TRUE(contains(message, "the device of rank 1 is the CPU")) << message;
    comm->barrier("still of use");
  };
  run_tcp(3, {.timeout_s = 3600}, [&](const std::shared_ptr<Communicator>& comm) {
    for (const auto choice : {DeviceComm::automatic, DeviceComm::nccl, DeviceComm::host_staged})
      refuses(comm, [&](const auto& host, Device device) {
        return comm::on_device(host, device, choice);
      });
    refuses(comm, [](const auto& host, Device device) { return make_nccl(host, device); });
  });
}

TEST(OnDevice, AMissingGpuIsNamedByAllAtOnce) {
  run_tcp(2, {.timeout_s = 3600}, [](const std::shared_ptr<Communicator>& comm) {
    const auto make = [&] { (void)comm::on_device(comm, Device::cuda(99 * comm->rank())); };
    const auto message =
        comm->rank() == 1 ? message_of<DeviceError>(make) : message_of<CommError>(make);
    EXPECT_TRUE(contains(message, "rank 1: there is no cuda:99")) << message;
    comm->barrier("still of use");
  });
}

TEST(DeviceOfRank, TakesDevicesInTurn) {
  const int visible = static_cast<int>(available_devices().size()) - 1;
  for (int r = 0; r < 2 * visible; ++r) EXPECT_EQ(device_of_rank(r), Device::cuda(r % visible));
  run_tcp(3, {}, [&](const std::shared_ptr<Communicator>& comm) {
    EXPECT_EQ(device_of_rank(*comm), Device::cuda(comm->rank() % visible));
  });
}

/// A launcher that gives each process a GPU of its own calls it cuda:0 in all of them.
TEST(RanksThatSeeOneGpuEach, HaveThatOfTheirOwnUnlessItIsTheSame) {
  if (!dkfac::testing::is_emulated()) GTEST_SKIP() << "threads of a process see the same GPUs";
  const auto with = [](int gpus, std::string_view backend) {
    run_tcp(3, {}, [&](const std::shared_ptr<Communicator>& comm) {
      dkfac::testing::show_device(comm->rank() % gpus);
      const int ranks_on_device = gpus == 2 && comm->rank() != 1 ? 2 : 1;
      EXPECT_EQ(available_devices().size(), 2U);
      EXPECT_EQ(device_of_rank(*comm), Device::cuda());
      EXPECT_EQ(ranks_on_gpu(*comm, Device::cuda()), ranks_on_device);
      expect_backend(comm, Device::cuda(), DeviceComm::automatic, backend);
    });
  };
  with(3, is_available("nccl") ? "nccl" : "host_staged");
  with(2, "host_staged");
}

TEST(RanksOnGpu, CountsThoseThatShareIt) {
  run_tcp(3, {}, [](const std::shared_ptr<Communicator>& comm) {
    EXPECT_EQ(ranks_on_gpu(*comm, Device::cpu()), 1);
    EXPECT_EQ(ranks_on_gpu(*comm, Device::cuda()), 3);
    if (!has_devices(2)) return;
    const int second = comm->rank() == 1 ? 1 : 0;
    EXPECT_EQ(ranks_on_gpu(*comm, Device::cuda(second)), second == 1 ? 1 : 2);
  });
}

TEST(OnDevice, RanksOfThisMachineFindTheirDevicesThemselves) {
  run_tcp(3, {}, [](const std::shared_ptr<Communicator>& host) {
    const Device device = device_of_rank(*host);
    const auto comm = comm::on_device(host, device);
    expect_sums(*comm, device);
  });
}

}  // namespace dkfac::comm::testing
