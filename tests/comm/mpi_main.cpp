#include <cstdio>

#include <gtest/gtest.h>
#include <mpi.h>

/// Runs the tests under MPI, which most programs initialise by MPI_Init. Every process runs every
/// test; the exit code is the worst of all.
int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  ::testing::InitGoogleTest(&argc, argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (rank != 0) {  // only failures of the other ranks are worth a line
    delete listeners.Release(listeners.default_result_printer());
    class Failures : public ::testing::EmptyTestEventListener {
      void OnTestPartResult(const ::testing::TestPartResult& result) override {
        if (result.failed()) {
          std::fprintf(stderr, "%s:%d: %s\n", result.file_name(), result.line_number(),
                       result.message());
        }
      }
    };
    listeners.Append(new Failures);
  }
  int mine = RUN_ALL_TESTS(), worst = mine;
  MPI_Allreduce(&mine, &worst, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  return worst;
}
