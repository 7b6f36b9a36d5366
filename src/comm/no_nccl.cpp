#include "dkfac/comm/nccl.h"
#include "dkfac/core/error.h"

#include "comm/backends.h"

namespace dkfac::comm {

bool has_nccl() noexcept { return false; }

std::shared_ptr<Communicator> make_nccl(std::shared_ptr<Communicator>, Device, NcclOptions) {
  throw CommError(
      "[make_nccl] this build has no NCCL; build with CUDA where nccl.h is found (NCCL_ROOT), or "
      "use "
      "make_host_staged over another communicator");
}

}  // namespace dkfac::comm
