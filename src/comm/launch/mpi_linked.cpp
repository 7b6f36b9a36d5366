#include "comm/launch/mpi_calls.h"

namespace dkfac::comm {

const MpiCalls* find_mpi() noexcept { return dkfac_mpi_calls(); }

const MpiCalls& load_mpi(const LaunchInfo&) { return *dkfac_mpi_calls(); }

}  // namespace dkfac::comm
