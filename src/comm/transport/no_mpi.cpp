#include "dkfac/core/error.h"

#include "comm/backends.h"

namespace dkfac::comm {

bool has_mpi() noexcept { return false; }

bool mpi_is_running() noexcept { return false; }

void start_mpi(const LaunchInfo& launch) {
  // The variables of mpirun take precedence over RANK and the others.
  const char* over_tcp =
      launch.launcher == "openmpi"
          ? "start the processes without mpirun, which then connect over TCP: by torchrun, by srun "
            "--mpi=none, or by hand with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
          : "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for TCP";
  throw CommError(detail::concat("[world] ", launch.launcher, " started ", launch.size,
                                 " processes, but this build has no MPI; configure it with "
                                 "-DDKFAC_MPI=ON, or ",
                                 over_tcp));
}

std::shared_ptr<Communicator> make_mpi_world(const LaunchInfo&, const Options& options) {
  return make_self(options);
}

void finish_mpi() noexcept {}

void abort_mpi(int /*exit_code*/) noexcept {}

}  // namespace dkfac::comm
