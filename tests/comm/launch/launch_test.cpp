#include "dkfac/comm/launch.h"

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

#include "comm/launch/launch_slurm.h"

namespace dkfac::comm {

namespace {

/// Fixture that clears the variables of launchers and restores them after a test.
class Launch : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK",
                             "SLURM_PROCID",
                             "SLURM_STEP_NUM_TASKS",
                             "SLURM_LOCALID",
                             "SLURM_STEP_NODELIST",
                             "SLURM_LAUNCH_NODE_IPADDR",
                             "SLURM_JOB_ID",
                             "SLURM_STEP_ID",
                             "PMI_RANK",
                             "PMI_SIZE",
                             "PMI_FD",
                             "MPI_LOCALRANKID",
                             "PMIX_RANK",
                             "PMIX_NAMESPACE",
                             "RANK",
                             "WORLD_SIZE",
                             "LOCAL_RANK",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "DKFAC_PORT",
                             "TORCHELASTIC_RUN_ID",
                             "TORCHELASTIC_USE_AGENT_STORE"}) {
      if (const char* value = std::getenv(name)) saved_[name] = value;
      unsetenv(name);
      touched_.emplace_back(name);
    }
  }
  void TearDown() override {
    clear();
    for (const auto& [name, value] : saved_) setenv(name.c_str(), value.c_str(), 1);
  }
  static void set(const char* name, const char* value) { setenv(name, value, 1); }
  void clear() const {
    for (const std::string& name : touched_) unsetenv(name.c_str());
  }
  /// Expects an error that contains all of `parts` with `variables` and no others.
  void expect_refused(const std::vector<std::pair<const char*, const char*>>& variables,
                      const std::vector<std::string>& parts) const {
    clear();
    std::string text;
    for (const auto& [name, value] : variables) {
      set(name, value);
      text += std::string(name) + "=" + value + " ";
    }
    try {
      const LaunchInfo info = detect_launch();
      ADD_FAILURE() << text << "is rank " << info.rank << " of " << info.size;
    } catch (const InvalidArgument& error) {
      const std::string what = error.what();
      for (const std::string& part : parts)
        EXPECT_NE(what.find(part), std::string::npos) << text << ": " << what;
      EXPECT_NE(what.find("; "), std::string::npos) << "no remedy: " << what;
    }
  }

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
  set("SLURM_PROCID", "0");
  set("SLURM_LOCALID", "0");
  EXPECT_EQ(detect_launch().launcher, "none");
  set("SLURM_PROCID", "1");
  set("SLURM_STEP_NUM_TASKS", "8");
  set("SLURM_STEP_NODELIST", "n1");
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

TEST_F(Launch, RecognisesTorchrun) {
  set("RANK", "3");
  set("WORLD_SIZE", "4");
  set("LOCAL_RANK", "1");
  set("MASTER_ADDR", "10.0.0.7");
  set("MASTER_PORT", "29500");
  const LaunchInfo info = detect_launch();
  EXPECT_EQ(info.rank, 3);
  EXPECT_EQ(info.size, 4);
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.launcher, "torchrun");
  EXPECT_EQ(info.host, "10.0.0.7");
  EXPECT_EQ(info.port, 29500);
}

TEST_F(Launch, RanksSetByHandNeedAPort) {
  set("RANK", "1");
  set("WORLD_SIZE", "2");
  set("MASTER_ADDR", "10.0.0.7");
  EXPECT_THROW((void)detect_launch(), InvalidArgument) << "each rank would train alone";
  set("DKFAC_PORT", "4000");
  EXPECT_EQ(detect_launch().launcher, "torchrun");
  EXPECT_EQ(detect_launch().rank, 1);
  EXPECT_EQ(detect_launch().port, 4000);
}

TEST_F(Launch, HalfOfWhatRanksHaveIsNoRankAlone) {
  // RANK and related variables, set by hand or by an unknown launcher.
  expect_refused({{"RANK", "1"}, {"WORLD_SIZE", "2"}}, {"WORLD_SIZE is '2'", "MASTER_ADDR"});
  expect_refused({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", ""}}, {"MASTER_ADDR"});
  expect_refused({{"RANK", "1"}}, {"RANK is '1'", "WORLD_SIZE is not set", "unset RANK"});
  expect_refused({{"WORLD_SIZE", "2"}}, {"WORLD_SIZE is '2'", "RANK is not set"});
  expect_refused({{"WORLD_SIZE", "2"}, {"MASTER_ADDR", "n1"}, {"MASTER_PORT", "1"}},
                 {"RANK is not"});
  expect_refused({{"LOCAL_RANK", "1"}}, {"LOCAL_RANK is '1'", "RANK is not set"});
  expect_refused({{"OMPI_COMM_WORLD_RANK", "1"}}, {"OMPI_COMM_WORLD_SIZE is not set"});
  expect_refused({{"OMPI_COMM_WORLD_SIZE", "2"}}, {"OMPI_COMM_WORLD_RANK is not set"});
  expect_refused({{"OMPI_COMM_WORLD_LOCAL_RANK", "0"}}, {"OMPI_COMM_WORLD_RANK is not set"});
  expect_refused({{"PMI_RANK", "0"}}, {"PMI_SIZE is not set"});
  expect_refused({{"PMI_SIZE", "2"}}, {"PMI_RANK is not set"});
  expect_refused({{"MPI_LOCALRANKID", "0"}}, {"PMI_RANK is not set"});
  expect_refused({{"PMIX_RANK", "0"}}, {"PMIX_RANK is '0'", "how many ranks"});
  expect_refused({{"SLURM_PROCID", "1"}}, {"SLURM_STEP_NUM_TASKS is not set"});
  expect_refused({{"SLURM_STEP_NUM_TASKS", "2"}}, {"SLURM_PROCID is not set"});
  expect_refused({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}},
                 {"SLURM_STEP_NODELIST", "MASTER_ADDR"});
  // A shell of Slurm is a step of one process.
  expect_refused(
      {{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"RANK", "1"}, {"WORLD_SIZE", "2"}},
      {"MASTER_ADDR"});
}

TEST_F(Launch, VariablesOfNoLauncherAreNotRefused) {
  set("MASTER_ADDR", "n1");
  set("MASTER_PORT", "29500");
  EXPECT_EQ(detect_launch().launcher, "none") << "a job script sets these for all its commands";
  set("RANK", "0");
  set("WORLD_SIZE", "1");
  unsetenv("MASTER_ADDR");
  EXPECT_EQ(detect_launch().size, 1) << "the only one";
  set("WORLD_SIZE", "4");
  set("OMPI_COMM_WORLD_RANK", "1");
  set("OMPI_COMM_WORLD_SIZE", "2");
  EXPECT_EQ(detect_launch().launcher, "openmpi") << "it knows all that it needs";
}

TEST_F(Launch, LeavesTorchrunItsOwnPort) {
  set("RANK", "0");
  set("WORLD_SIZE", "1");
  set("MASTER_ADDR", "localhost");
  set("MASTER_PORT", "29500");
  set("TORCHELASTIC_USE_AGENT_STORE", "True");
  EXPECT_EQ(detect_launch().port, 29501);
  set("MASTER_PORT", "65535");
  EXPECT_EQ(detect_launch().port, 65534);
  set("DKFAC_PORT", "4000");
  EXPECT_EQ(detect_launch().port, 4000);
  set("DKFAC_PORT", "65536");
  EXPECT_THROW((void)detect_launch(), InvalidArgument);
}

TEST_F(Launch, TheInnermostLauncherCounts) {
  set("SLURM_PROCID", "0");
  set("SLURM_STEP_NUM_TASKS", "2");
  set("SLURM_STEP_NODELIST", "n[1-2]");
  set("RANK", "1");
  set("WORLD_SIZE", "8");
  set("MASTER_ADDR", "n1");
  set("MASTER_PORT", "29500");
  EXPECT_EQ(detect_launch().launcher, "torchrun");
  set("OMPI_COMM_WORLD_RANK", "0");
  set("OMPI_COMM_WORLD_SIZE", "2");
  EXPECT_EQ(detect_launch().launcher, "openmpi") << "variables of torchrun, set by hand";
  EXPECT_TRUE(detect_launch().host.empty());
  set("TORCHELASTIC_RUN_ID", "none");
  EXPECT_EQ(detect_launch().launcher, "torchrun") << "one agent for each node, by mpirun";
}

TEST_F(Launch, SrunWithoutPmiGoesOverTcpToTheFirstNodeOfTheStep) {
  set("SLURM_PROCID", "5");
  set("SLURM_STEP_NUM_TASKS", "8");
  set("SLURM_LOCALID", "1");
  set("SLURM_JOB_ID", "1234567");
  set("SLURM_STEP_ID", "2");
  set("SLURM_LAUNCH_NODE_IPADDR", "10.1.2.3");
  EXPECT_EQ(detect_launch().host, "10.1.2.3");
  set("SLURM_STEP_NODELIST", "gpu[003-006]");
  const LaunchInfo info = detect_launch();
  EXPECT_EQ(info.launcher, "slurm");
  EXPECT_EQ(info.rank, 5);
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.host, "gpu003");
  EXPECT_GE(info.port, 20000);
  EXPECT_LT(info.port, 30000);
  set("SLURM_STEP_ID", "3");
  EXPECT_NE(detect_launch().port, info.port) << "two steps of a job may share a node";
  set("MASTER_ADDR", "gpu004");
  set("MASTER_PORT", "4242");
  EXPECT_EQ(detect_launch().host, "gpu004");
  EXPECT_EQ(detect_launch().port, 4242);
}

TEST_F(Launch, SrunWithPmixGoesOverMpi) {
  set("SLURM_PROCID", "0");
  set("SLURM_STEP_NUM_TASKS", "8");
  set("SLURM_STEP_NODELIST", "n1");
  for (const char* variable : {"PMIX_RANK", "PMI_RANK"}) {
    EXPECT_FALSE(detect_launch().host.empty());
    set(variable, "0");
    EXPECT_TRUE(detect_launch().host.empty()) << variable;
    unsetenv(variable);
  }
}

TEST_F(Launch, RanksOfMpichInsideSrunAreThoseOfMpich) {
  set("SLURM_PROCID", "0");
  set("SLURM_STEP_NUM_TASKS", "2");  // one proxy for each node
  set("PMI_RANK", "5");
  set("PMI_SIZE", "8");
  const LaunchInfo info = detect_launch();
  EXPECT_EQ(info.launcher, "pmi");
  EXPECT_EQ(info.rank, 5);
  EXPECT_EQ(info.size, 8);
  EXPECT_TRUE(info.host.empty());
}

TEST_F(Launch, AnInteractiveSlurmShellIsAlone) {
  set("SLURM_PROCID", "0");
  set("SLURM_STEP_NUM_TASKS", "1");
  set("SLURM_JOB_ID", "4200000000");
  set("SLURM_STEP_ID", "4294967290");
  set("SLURM_STEP_NODELIST", "no-such-host.invalid");
  const LaunchInfo info = detect_launch();
  EXPECT_EQ(info.size, 1);
  EXPECT_GE(info.port, 20000);
  EXPECT_LT(info.port, 30000);
  EXPECT_EQ(World().comm()->backend(), "self");
}

TEST(FirstHost, OfASlurmNodeList) {
  EXPECT_EQ(first_host("node7"), "node7");
  EXPECT_EQ(first_host("a,b"), "a");
  EXPECT_EQ(first_host("gpu[003-007,9],login"), "gpu003");
  EXPECT_EQ(first_host("r[2,4]n[08-11]-ib,x"), "r2n08-ib");
  EXPECT_EQ(first_host("broken[12"), "broken12");
  EXPECT_EQ(first_host(""), "");
}

TEST_F(Launch, AWorldOfOneUnderTorchrunIsTheSelfCommunicator) {
  set("RANK", "0");
  set("WORLD_SIZE", "1");
  set("MASTER_ADDR", "no-such-host.invalid");
  set("MASTER_PORT", "1");
  EXPECT_EQ(World().comm()->backend(), "self");
}

TEST_F(Launch, RefusesValuesThatAreNoNumbers) {
  set("OMPI_COMM_WORLD_RANK", "zero");
  set("OMPI_COMM_WORLD_SIZE", "4");
  EXPECT_THROW((void)detect_launch(), InvalidArgument);
  set("OMPI_COMM_WORLD_RANK", "-1");
  EXPECT_THROW((void)detect_launch(), InvalidArgument);
  set("OMPI_COMM_WORLD_RANK", "4");
  EXPECT_THROW((void)detect_launch(), InvalidArgument);
  expect_refused({{"RANK", "one"}, {"WORLD_SIZE", "2"}}, {"RANK is 'one'"});
  expect_refused({{"RANK", "1"}, {"WORLD_SIZE", "2.0"}}, {"WORLD_SIZE is '2.0'"});
  expect_refused({{"RANK", "0"}, {"WORLD_SIZE", "0"}}, {"RANK is 0", "WORLD_SIZE is 0"});
  expect_refused({{"RANK", "0"}, {"WORLD_SIZE", "99999999999"}}, {"WORLD_SIZE is '99999999999'"});
  expect_refused({{"RANK", "\x1b\xff"}, {"WORLD_SIZE", "2"}}, {"RANK is '\\x1b\\xff'"});
  expect_refused({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "-1"}},
                 {"MPI_LOCALRANKID is '-1'"});
  expect_refused({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "2"}},
                 {"MPI_LOCALRANKID is 2"});
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
  // The variables of mpirun precede those that would choose TCP.
  set("OMPI_COMM_WORLD_RANK", "0");
  set("OMPI_COMM_WORLD_SIZE", "3");
  try {
    const World world;
    ADD_FAILURE() << "a world without MPI";
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what()).find("without mpirun"), std::string::npos) << error.what();
  }
}

TEST_F(Launch, OneRankOfAnotherLauncherNeedsNone) {
  if (is_available("mpi")) GTEST_SKIP() << "this build has MPI";
  set("SLURM_PROCID", "0");
  set("SLURM_STEP_NUM_TASKS", "1");
  set("PMIX_RANK", "0");
  EXPECT_EQ(World().comm()->backend(), "self");
}

TEST(WorldDeathTest, TerminateEndsTheProcessWithTheCode) {
  EXPECT_EXIT(World::terminate(75), ::testing::ExitedWithCode(75), "");
}

}  // namespace dkfac::comm
