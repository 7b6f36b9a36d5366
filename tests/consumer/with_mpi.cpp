// make_mpi() in a program that calls plain MPI_Init.
#include <cstdio>

#include "dkfac/comm/mpi.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  double sum = 1;
  int size = 0;
  {
    const auto comm = dkfac::comm::make_mpi(MPI_COMM_WORLD);
    size = comm->size();
    comm->all_reduce(dkfac::view_of(&sum, {1}), dkfac::comm::ReduceOp::sum, dkfac::Stream::cpu());
    std::printf("%s: %g of %d ranks\n", comm->backend().data(), sum, size);
  }
  MPI_Finalize();
  return sum == size ? 0 : 1;
}
