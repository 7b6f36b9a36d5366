#include <gtest/gtest.h>

#include "dkfac/comm/mpi.h"

#include "nn/distributed_training.h"

namespace dkfac::testing {
namespace {

TEST(DistributedKfacOverMpi, GivesTheWeightsOfOneRankAndTheSameBitsOnAll) {
  const Trained expected = train_kfac(comm::make_self(), false);
  const std::shared_ptr<comm::Communicator> comm = comm::make_mpi(MPI_COMM_WORLD);
  ASSERT_GT(comm->size(), 1);
  for (const bool overlap : {true, false}) {
    expect_same_training(*comm, train_kfac(comm, overlap), expected);
  }
}

}  // namespace
}  // namespace dkfac::testing
