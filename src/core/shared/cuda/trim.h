#pragma once

#include "dkfac/core/device.h"

/// Device memory for libraries, which allocate outside the pool of tensors.
namespace dkfac::cuda {

/// Waits for pending work and returns the unused memory of the tensor pool to the driver. Returns
/// false and does nothing while this thread captures work, and where there is no pool yet. Throws
/// what ends waits (core/shared/wait_watch.h).
bool trim_memory(Device device);

/// Returns the code of call(). If it is one of `no_memory`, calls trim_memory() and retries once.
template <class Call, class... Codes>
[[nodiscard]] auto with_memory(Device device, Call&& call, Codes... no_memory) {
  const auto code = call();
  return ((code == no_memory) || ...) && trim_memory(device) ? call() : code;
}

}  // namespace dkfac::cuda
