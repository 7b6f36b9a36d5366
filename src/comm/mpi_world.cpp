#include <exception>
#include <unistd.h>

#include <mpi.h>

#include "dkfac/comm/launch.h"
#include "dkfac/comm/mpi.h"
#include "dkfac/core/error.h"

#include "comm/backends.h"
#include "comm/mpi_error.h"

namespace dkfac::comm {

namespace {

bool mpi_is_usable() {
  int initialized = 0, finalized = 0;
  return MPI_Initialized(&initialized) == MPI_SUCCESS && initialized != 0 &&
         MPI_Finalized(&finalized) == MPI_SUCCESS && finalized == 0;
}

void initialize_mpi() {
  int level = MPI_THREAD_SINGLE;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level), "MPI_Init_thread");
  if (level < MPI_THREAD_FUNNELED) {
    throw CommError(detail::concat("[world] this MPI offers thread level ", level,
                                   "; at least MPI_THREAD_FUNNELED (", MPI_THREAD_FUNNELED,
                                   ") is needed"));
  }
}

/// An MPI that was built for another launcher starts as many jobs of one rank.
void check_size(const LaunchInfo& launch, int size) {
  if (launch.launcher == "none" || launch.size == size) return;
  throw CommError(detail::concat("[world] ", launch.launcher, " started ", launch.size,
                                 " processes but MPI sees ", size,
                                 "; use the launcher of this MPI (mpirun, or srun --mpi=pmix)"));
}

}  // namespace

bool has_mpi() noexcept { return true; }

World::World(Options options) {
  options.validate();
  const LaunchInfo launch = detect_launch();
  const bool running = mpi_is_usable();
  if (launch.launcher == "none" && !running) {
    comm_ = make_self(options);
    return;
  }
  if (!running) {
    initialize_mpi();
    owns_mpi_ = true;
  }
  comm_ = make_mpi(MPI_COMM_WORLD, options);
  check_size(launch, comm_->size());
}

World::~World() {
  if (!owns_mpi_ || !mpi_is_usable()) return;
  // Finalising would wait for peers that are still inside a collective, or gone.
  if (std::uncaught_exceptions() > 0) comm_->abort("the program left by an exception");
  if (comm_->failed()) return;
  comm_.reset();
  MPI_Finalize();
}

void World::terminate(int exit_code) {
  if (mpi_is_usable()) MPI_Abort(MPI_COMM_WORLD, exit_code);
  _exit(exit_code);
}

}  // namespace dkfac::comm
