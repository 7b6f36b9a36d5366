#include <mpi.h>

#include "dkfac/comm/mpi.h"
#include "dkfac/core/error.h"

#include "comm/launch/mpi_calls.h"
#include "comm/transport/mpi_error.h"

namespace dkfac::comm {

namespace {

void start_mpi() {
  int level = MPI_THREAD_SINGLE;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level), "MPI_Init_thread");
  if (level < MPI_THREAD_FUNNELED) {
    throw CommError(detail::concat("[world] this MPI offers thread level ", level,
                                   "; at least MPI_THREAD_FUNNELED (", MPI_THREAD_FUNNELED,
                                   ") is needed"));
  }
}

std::shared_ptr<Communicator> make_mpi_world(const LaunchInfo& launch, const Options& options) {
  auto comm = make_mpi(MPI_COMM_WORLD, options);
  // An MPI library built for another launcher starts one job of one rank per process.
  if (launch.launcher != "none" && launch.host.empty() && launch.size != comm->size()) {
    throw CommError(detail::concat(
        "[world] ", launch.launcher, " started ", launch.size, " processes but MPI sees ",
        comm->size(),
        "; use the launcher of this MPI (mpirun, or srun --mpi=pmix), or srun --mpi=none for TCP"));
  }
  if (launch.size > 1 && comm->size() == 1) {
    throw CommError(detail::concat(
        "[world] ", launch.launcher, " started ", launch.size,
        " processes, and each has initialised MPI for itself alone; initialise it after World, ",
        "which then connects them over TCP, or use the launcher of this MPI"));
  }
  return comm;
}

void finish_mpi() noexcept { MPI_Finalize(); }

void abort_mpi(int exit_code) noexcept { MPI_Abort(MPI_COMM_WORLD, exit_code); }

}  // namespace
}  // namespace dkfac::comm

const dkfac::comm::MpiCalls* dkfac_mpi_calls() noexcept {
  using namespace dkfac::comm;
  static constexpr MpiCalls kCalls{mpi_is_running, start_mpi, make_mpi_world, finish_mpi,
                                   abort_mpi};
  return &kCalls;
}
