#include "dkfac/comm/hierarchical.h"
#include "dkfac/comm/in_process.h"
#include "dkfac/comm/mpi.h"
#include "dkfac/core/stream.h"

#include "comm/conformance.h"

// The conformance suite over MPI processes in two levels.
namespace dkfac::comm::testing {

std::vector<int> sizes() {
  int initialized = 0, size = 1;  // not initialised while the tests are only listed
  MPI_Initialized(&initialized);
  if (initialized != 0) MPI_Comm_size(MPI_COMM_WORLD, &size);
  return {size};
}

void run(int size, const Options& options, const Body& body) {
  ranks_per_node = size % 2 == 0 ? 2 : 1;
  const Hierarchy h = make_hierarchical(make_mpi(MPI_COMM_WORLD, options), ranks_per_node);
  ASSERT_EQ(h.comm->size(), size);
  body(*h.comm);
}

TEST(MpiHierarchical, GivesTheBitsOfThreadsInTwoLevels) {
  constexpr std::int64_t kCount = 2999;
  const int size = sizes().front(), per_node = size % 2 == 0 ? size / 2 : size;
  const auto sum = [&](const std::shared_ptr<Communicator>& world) {
    std::vector<float> x = values_of<float>(world->rank(), kCount);
    make_hierarchical(world, per_node).comm->all_reduce(view(x), ReduceOp::sum, Stream::cpu());
    return x;
  };
  std::vector<float> of_threads;
  run_ranks(size, [&](const std::shared_ptr<Communicator>& world) {
    const std::vector<float> x = sum(world);
    if (world->rank() == 0) of_threads = x;
  });
  EXPECT_EQ(sum(make_mpi(MPI_COMM_WORLD, {.piece_bytes = 64})), of_threads);
}

}  // namespace dkfac::comm::testing
