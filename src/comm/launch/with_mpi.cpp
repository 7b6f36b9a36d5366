#include "comm/backends.h"

namespace dkfac::comm {

bool has_mpi() noexcept { return true; }

}  // namespace dkfac::comm
