#include <unistd.h>

#include "dkfac/comm/launch.h"
#include "dkfac/core/error.h"

#include "comm/backends.h"

namespace dkfac::comm {

bool has_mpi() noexcept { return false; }

World::World(Options options) {
  const LaunchInfo launch = detect_launch();
  if (launch.size > 1) {
    throw CommError(detail::concat(
        "[world] ", launch.launcher, " started ", launch.size,
        " processes, but this build has no MPI; configure it with -DDKFAC_MPI=ON, or start one "
        "process"));
  }
  comm_ = make_self(options);
}

World::~World() = default;

void World::terminate(int exit_code) { _exit(exit_code); }

}  // namespace dkfac::comm
