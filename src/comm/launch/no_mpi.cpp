#include "comm/launch/mpi_calls.h"

namespace dkfac::comm {

bool has_mpi() noexcept { return false; }

const MpiCalls* find_mpi() noexcept { return nullptr; }

const MpiCalls& load_mpi(const LaunchInfo& launch) {
  throw_no_mpi(launch, "this build has no MPI; configure it with -DDKFAC_MPI=ON");
}

}  // namespace dkfac::comm
