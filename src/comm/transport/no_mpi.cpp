#include "dkfac/core/error.h"

#include "comm/backends.h"

namespace dkfac::comm {

bool has_mpi() noexcept { return false; }

bool mpi_is_running() noexcept { return false; }

void start_mpi(const LaunchInfo& launch) {
  throw CommError(detail::concat(
      "[world] ", launch.launcher, " started ", launch.size,
      " processes, but this build has no MPI; configure it with -DDKFAC_MPI=ON, or set RANK, "
      "WORLD_SIZE, MASTER_ADDR and MASTER_PORT for TCP"));
}

std::shared_ptr<Communicator> make_mpi_world(const LaunchInfo&, const Options& options) {
  return make_self(options);
}

void finish_mpi() noexcept {}

void abort_mpi(int /*exit_code*/) noexcept {}

}  // namespace dkfac::comm
