#include <cstdlib>
#include <map>
#include <thread>

#include "dkfac/comm/in_process.h"
#include "dkfac/comm/launch.h"
#include "dkfac/comm/mpi.h"
#include "dkfac/core/error.h"
#include "dkfac/core/stream.h"

#include "comm/conformance.h"

namespace dkfac::comm::testing {

namespace {

int world_size() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

}  // namespace

std::vector<int> sizes() {
  int initialized = 0;  // false while the tests are only listed, without MPI
  MPI_Initialized(&initialized);
  return {initialized != 0 ? world_size() : 1};
}

void run(int size, const Options& options, const Body& body) {
  const auto comm = make_mpi(MPI_COMM_WORLD, options);
  ASSERT_EQ(comm->size(), size);
  body(*comm);
}

TEST(Mpi, SaysWhatItIs) {
  const auto comm = make_mpi(MPI_COMM_WORLD);
  int rank = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  EXPECT_EQ(comm->rank(), rank);
  EXPECT_EQ(comm->backend(), "mpi");
  EXPECT_TRUE(is_available("mpi"));
}

TEST(Mpi, GivesTheBitsOfTheInProcessBackend) {
  const int size = world_size();
  constexpr std::int64_t kCount = 2999;
  std::vector<float> threads_result;
  run_ranks(size, [&](const std::shared_ptr<Communicator>& comm) {
    std::vector<float> x = values_of<float>(comm->rank(), kCount);
    comm->all_reduce(view(x), ReduceOp::sum, Stream::cpu());
    if (comm->rank() == 0) threads_result = x;
  });
  const auto comm = make_mpi(MPI_COMM_WORLD, {.piece_bytes = 64});
  std::vector<float> x = values_of<float>(comm->rank(), kCount);
  comm->all_reduce(view(x), ReduceOp::sum, Stream::cpu());
  EXPECT_EQ(x, threads_result);
}

TEST(Mpi, LeavesTheCallersCommunicatorAlone) {
  const auto comm = make_mpi(MPI_COMM_WORLD);
  // A message of the program between these ranks, of any tag, must not match one of the library.
  const int size = comm->size(), next = (comm->rank() + 1) % size;
  int sent = comm->rank(), received = -1;
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Irecv(&received, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &request);
  std::vector<double> x(100, 1);
  comm->all_reduce(view(x), ReduceOp::sum, Stream::cpu());
  EXPECT_EQ(received, -1);
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Send(&sent, 1, MPI_INT, next, 1, MPI_COMM_WORLD);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  EXPECT_EQ(received, (comm->rank() + size - 1) % size);
  EXPECT_EQ(x[0], size);
}

TEST(Mpi, SplitsOfSplitsAndManyCommunicatorsWork) {
  const auto comm = make_mpi(MPI_COMM_WORLD);
  for (int round = 0; round < 5; ++round) {
    const auto half = comm->split(comm->rank() % 2);
    const auto single = half->split(half->rank());
    EXPECT_EQ(single->size(), 1);
    std::vector<double> x{1};
    half->all_reduce(view(x), ReduceOp::sum, Stream::cpu());
    EXPECT_EQ(x[0], half->size());
  }
}

TEST(World, UsesAnMpiThatIsRunningAndLeavesItRunning) {
  {
    const World world({.timeout_s = 30});
    EXPECT_EQ(world.comm()->size(), world_size());
    EXPECT_EQ(world.comm()->backend(), "mpi");
  }
  int finalized = 1;
  MPI_Finalized(&finalized);
  EXPECT_EQ(finalized, 0);
}

TEST(World, RefusesRanksOfTorchrunThatMpiHasAlone) {
  if (world_size() > 1) GTEST_SKIP() << "needs an MPI of one rank";
  const std::map<const char*, const char*> torchrun{{"TORCHELASTIC_RUN_ID", "a"},
                                                    {"RANK", "0"},
                                                    {"WORLD_SIZE", "2"},
                                                    {"MASTER_ADDR", "127.0.0.1"},
                                                    {"MASTER_PORT", "29500"}};
  for (const auto& [name, value] : torchrun) setenv(name, value, 1);
  const std::string message = message_of<CommError>([] { const World world({.timeout_s = 30}); });
  for (const auto& [name, value] : torchrun) unsetenv(name);
  EXPECT_TRUE(contains(message, "torchrun started 2 processes")) << message;
}

TEST(Mpi, RefusesTheNullCommunicator) {
  EXPECT_THROW((void)make_mpi(MPI_COMM_NULL), InvalidArgument);
}

TEST(Mpi, OnlyTheThreadThatInitialisedMpiMayCallIt) {
  int level = MPI_THREAD_MULTIPLE;
  MPI_Query_thread(&level);
  ASSERT_EQ(level, MPI_THREAD_SINGLE);  // What plain MPI_Init gives; all tests here run with it.
  const auto comm = make_mpi(MPI_COMM_WORLD);
  const auto in_another_thread = [](auto call) {
    std::string message;
    std::thread([&] { message = message_of<InvalidArgument>(call); }).join();
    return message;
  };
  double one = 1;
  for (const std::string& message :
       {in_another_thread([] { (void)make_mpi(MPI_COMM_WORLD); }), in_another_thread([&] {
          comm->all_reduce(view_of(&one, {1}), ReduceOp::sum, Stream::cpu());
        })}) {
    EXPECT_TRUE(contains(message, "MPI_THREAD_SINGLE")) << message;
    EXPECT_TRUE(contains(message, "MPI_Init_thread with MPI_THREAD_SERIALIZED")) << message;
  }
}

TEST(Mpi, OptionsThatDifferOverRanksAreRefusedOnEveryRank) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (world_size() < 2) GTEST_SKIP() << "needs two ranks";
  const std::string message = message_of<CommError>([&] {
    (void)make_mpi(MPI_COMM_WORLD, {.timeout_s = 30, .piece_bytes = rank == 1 ? 64 : 128});
  });
  EXPECT_TRUE(contains(message, "rank 1 issued #0 make_mpi(piece_bytes 64")) << message;
}

}  // namespace dkfac::comm::testing
