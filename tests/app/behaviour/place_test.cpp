#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/error.h"
#include "dkfac/core/threads.h"

#include "app/commands/eval_checkpoint.h"
#include "app/run/placement.h"

namespace dkfac::app {
namespace {

Config on(const std::string& device) {
  Config config;
  config.run.device = device;
  return config;
}

TEST(DevicePlacement, OfARunOnTheHostIsTheCommunicatorItself) {
  const auto host = comm::make_self();
  Position position;
  const DevicePlacement place = find_placement(on("cpu"), host, position);
  EXPECT_EQ(place.device, Device::cpu());
  EXPECT_EQ(place.comm, host);
}

TEST(DevicePlacement, WithoutADeviceIsRefusedOnEveryRank) {
  if (available_devices().size() > 1) GTEST_SKIP() << "there is a device";
  for (const char* device : {"cuda", "cuda:0"}) {
    comm::run_ranks(2, [&](std::shared_ptr<comm::Communicator> comm) {
      Position position;
      try {
        (void)find_placement(on(device), std::move(comm), position);
        FAIL() << "no error";
      } catch (const RunError& error) {
        EXPECT_EQ(error.scope, RunError::Scope::every_rank);
        EXPECT_EQ(error.failure.code, ExitCode::usage);
        EXPECT_EQ(error.failure.position.activity, "device");
        const std::string& what = error.failure.what;
        EXPECT_NE(what.find(device), std::string::npos) << what;
        EXPECT_NE(what.find("run.device = \"cpu\""), std::string::npos) << what;
      }
    });
  }
}

TEST(DevicePlacement, LevelsAreRefusedWhereTheyWouldBeIgnored) {
  Config config = on("cuda");
  EXPECT_NO_THROW(require_levels(config, "nccl"));
  config.run.hierarchical = 8;
  EXPECT_NO_THROW(require_levels(config, "hierarchical"));
  EXPECT_NO_THROW(require_levels(config, "host_staged"));
  EXPECT_THROW(require_levels(config, "nccl"), InvalidArgument);
}

TEST(EvaluationPlacement, SharesTheCoresAmongItsRanks) {
  const char* const asked = std::getenv("OMP_NUM_THREADS");
  const std::string before = asked == nullptr ? "" : asked;
  unsetenv("OMP_NUM_THREADS");
  comm::run_ranks(2, [&](std::shared_ptr<comm::Communicator> comm) {
    set_threads(3);
    Position position;
    Config config = on("cpu");
    (void)place_evaluation(config, comm, position);
    EXPECT_EQ(threads(), 1);
    set_threads(3);
    config.run.threads = 3;
    (void)place_evaluation(config, comm, position);
    EXPECT_EQ(threads(), 3) << "what the configuration asks for";
  });
  if (asked != nullptr) setenv("OMP_NUM_THREADS", before.c_str(), 1);
}

TEST(EvaluationPlacement, HasTheLevelsOfTheRunOrIsRefused) {
  Config config = on("cpu");
  for (const auto& [levels, backend] : {std::pair{0, "in_process"}, {2, "hierarchical"}}) {
    config.run.hierarchical = levels;
    comm::run_ranks(4, [&](std::shared_ptr<comm::Communicator> comm) {
      Position position;
      EXPECT_EQ(place_evaluation(config, std::move(comm), position).comm->backend(), backend);
    });
  }
  Position position;
  EXPECT_EQ(place_evaluation(config, comm::make_self(), position).comm->backend(), "self");
  comm::run_ranks(3, [&](std::shared_ptr<comm::Communicator> comm) {
    Position mine;
    try {
      (void)place_evaluation(config, std::move(comm), mine);
      FAIL() << "no error";
    } catch (const RunError& error) {
      EXPECT_EQ(error.scope, RunError::Scope::every_rank);
      EXPECT_NE(error.failure.what.find("run.hierarchical = 2"), std::string::npos);
    }
  });
}

}  // namespace
}  // namespace dkfac::app
