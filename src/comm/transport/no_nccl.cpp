#include "dkfac/core/error.h"

#include "comm/backends.h"

namespace dkfac::comm {

bool has_nccl() noexcept { return false; }
int nccl_version() noexcept { return 0; }

std::shared_ptr<Communicator> connect_nccl(std::shared_ptr<Communicator>, Device, NcclOptions) {
  throw CommError("[make_nccl] this build has no NCCL");
}

}  // namespace dkfac::comm
