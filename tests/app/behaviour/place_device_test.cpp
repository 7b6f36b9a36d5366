// Where the ranks of a launcher find their devices. There are two emulated ones.

#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"

#include "app/run/placement.h"

namespace dkfac::app {
namespace {

const bool emulated_devices = setenv("DKFAC_EMULATED_DEVICES", "2", 1) == 0;

/// An environment as of a launcher that has started `ranks` processes, which are threads here.
class Launched {
 public:
  explicit Launched(int ranks) {
    setenv("OMPI_COMM_WORLD_RANK", "0", 1);
    setenv("OMPI_COMM_WORLD_SIZE", std::to_string(ranks).c_str(), 1);
  }
  ~Launched() {
    unsetenv("OMPI_COMM_WORLD_RANK");
    unsetenv("OMPI_COMM_WORLD_SIZE");
  }
  Launched(const Launched&) = delete;
  Launched& operator=(const Launched&) = delete;
};

Config on(const std::string& device) {
  Config config;
  config.run.device = device;
  return config;
}

int devices() { return !emulated_devices ? 0 : static_cast<int>(available_devices().size()) - 1; }

TEST(PlaceOnDevice, OfALaunchedRankIsAGpuOfItsOwn) {
  const Launched launched(devices());
  comm::run_ranks(devices(), [&](std::shared_ptr<comm::Communicator> comm) {
    Position position;
    const DevicePlacement place = find_placement(on("cuda"), std::move(comm), position);
    EXPECT_EQ(place.ranks_on_device, 1);
    EXPECT_EQ(place.device, Device::cuda(place.comm->rank()));
  });
}

TEST(PlaceOnDevice, RefusesLaunchedRanksThatShareAGpuOnAllOfThem) {
  const int ranks = devices() + 1;
  const Launched launched(ranks);
  comm::run_ranks(ranks, [&](std::shared_ptr<comm::Communicator> comm) {
    Position position;
    try {
      (void)find_placement(on("cuda"), std::move(comm), position);
      FAIL() << "no error";
    } catch (const RunError& error) {
      EXPECT_EQ(error.scope, RunError::Scope::every_rank);
      EXPECT_EQ(error.failure.code, ExitCode::usage);
      EXPECT_NE(error.failure.what.find("2 ranks share one GPU"), std::string::npos)
          << error.failure.what;
    }
  });
}

TEST(PlaceOnDevice, CountsThoseThatShareIt) {
  const auto ranks_on = [](const std::string& device, int ranks) {
    int ranks_on_device = 0;
    comm::run_ranks(ranks, [&](std::shared_ptr<comm::Communicator> comm) {
      Position position;
      const bool first = comm->rank() == 0;
      const DevicePlacement place = find_placement(on(device), std::move(comm), position);
      if (first) ranks_on_device = place.ranks_on_device;
    });
    return ranks_on_device;
  };
  EXPECT_EQ(ranks_on("cuda", 1), 1);
  EXPECT_EQ(ranks_on("cuda", devices() + 1), 2) << "threads may share";
  EXPECT_EQ(ranks_on("cuda:0", 3), 3);
  const Launched launched(3);
  EXPECT_EQ(ranks_on("cuda:0", 3), 3) << "and so may processes if configured";
}

}  // namespace
}  // namespace dkfac::app
