#pragma once

#include <memory>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/export.h"

namespace dkfac::comm {

/// Makes a communicator of device memory that stages it through pinned buffers and a communicator
/// of host memory. It serves several processes on one GPU, and machines without NCCL. Host views
/// are passed to `inner` unchanged. `inner` must not be used directly while the result is in use.
///
/// A call on a CUDA stream blocks the host until the preceding work of that stream is done, the
/// data is on the host, and the collective of `inner` is complete. Only the copy back to the device
/// is asynchronous. Time limits, comparison of calls, sums and failures are those of `inner`. Two
/// pinned buffers grow to the largest view and are kept.
[[nodiscard]] DKFAC_API std::shared_ptr<Communicator> make_host_staged(
    std::shared_ptr<Communicator> inner);

}  // namespace dkfac::comm
