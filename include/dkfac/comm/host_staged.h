#pragma once

#include <memory>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/export.h"

namespace dkfac::comm {

/// Collectives of device memory over a communicator of host memory, by way of pinned buffers: for
/// several processes on one GPU, and where there is no NCCL. Views of the host go to `inner` as
/// they are; it must not be used directly while this one is.
///
/// A call on a CUDA stream blocks the host: until the work before it on that stream is done, its
/// data has come to the host, and the collective of `inner` is complete. Only the way back to the
/// device is left to the stream. Time limits, comparison of calls, sums and failures are those of
/// `inner`. Two pinned buffers grow to the largest view and are kept.
[[nodiscard]] DKFAC_API std::shared_ptr<Communicator> make_host_staged(
    std::shared_ptr<Communicator> inner);

}  // namespace dkfac::comm
