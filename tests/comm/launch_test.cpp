#include "dkfac/comm/launch.h"

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

namespace dkfac::comm {

namespace {

/// The variables that launchers set, cleared for a test and put back after it.
class Launch : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "SLURM_PROCID",
                             "SLURM_STEP_NUM_TASKS", "PMI_RANK", "PMI_SIZE"}) {
      if (const char* value = std::getenv(name)) saved_[name] = value;
      unsetenv(name);
      touched_.emplace_back(name);
    }
  }
  void TearDown() override {
    for (const std::string& name : touched_) unsetenv(name.c_str());
    for (const auto& [name, value] : saved_) setenv(name.c_str(), value.c_str(), 1);
  }
  static void set(const char* name, const char* value) { setenv(name, value, 1); }

 private:
  std::map<std::string, std::string> saved_;
  std::vector<std::string> touched_;
};

}  // namespace

TEST_F(Launch, AloneWithoutALauncher) {
  const LaunchInfo info = detect_launch();
  EXPECT_EQ(info.rank, 0);
  EXPECT_EQ(info.size, 1);
  EXPECT_EQ(info.launcher, "none");
}

TEST_F(Launch, RecognisesOpenMpiAlsoInsideASlurmJob) {
  set("SLURM_PROCID", "0");
  set("SLURM_STEP_NUM_TASKS", "1");
  set("OMPI_COMM_WORLD_RANK", "2");
  set("OMPI_COMM_WORLD_SIZE", "4");
  const LaunchInfo info = detect_launch();
  EXPECT_EQ(info.rank, 2);
  EXPECT_EQ(info.size, 4);
  EXPECT_EQ(info.launcher, "openmpi");
}

TEST_F(Launch, RecognisesSrunButNotABatchScript) {
  set("SLURM_PROCID", "1");
  EXPECT_EQ(detect_launch().launcher, "none");
  set("SLURM_STEP_NUM_TASKS", "8");
  const LaunchInfo info = detect_launch();
  EXPECT_EQ(info.rank, 1);
  EXPECT_EQ(info.size, 8);
  EXPECT_EQ(info.launcher, "slurm");
}

TEST_F(Launch, RecognisesPmi) {
  set("PMI_RANK", "0");
  set("PMI_SIZE", "3");
  EXPECT_EQ(detect_launch().launcher, "pmi");
  EXPECT_EQ(detect_launch().size, 3);
}

TEST_F(Launch, RefusesValuesThatAreNoNumbers) {
  set("OMPI_COMM_WORLD_RANK", "zero");
  set("OMPI_COMM_WORLD_SIZE", "4");
  EXPECT_THROW((void)detect_launch(), InvalidArgument);
  set("OMPI_COMM_WORLD_RANK", "-1");
  EXPECT_THROW((void)detect_launch(), InvalidArgument);
  set("OMPI_COMM_WORLD_RANK", "4");
  EXPECT_THROW((void)detect_launch(), InvalidArgument);
}

TEST_F(Launch, AWorldAloneIsTheSelfCommunicator) {
  const World world;
  EXPECT_EQ(world.comm()->backend(), "self");
  EXPECT_EQ(world.comm()->size(), 1);
}

TEST_F(Launch, AnotherLaunchersRanksNeedMpi) {
  if (is_available("mpi")) GTEST_SKIP() << "this build has MPI";
  set("PMI_RANK", "0");
  set("PMI_SIZE", "3");
  EXPECT_THROW(World(), CommError);
}

TEST(WorldDeathTest, TerminateEndsTheProcessWithTheCode) {
  EXPECT_EXIT(World::terminate(75), ::testing::ExitedWithCode(75), "");
}

}  // namespace dkfac::comm
