#pragma once

#include "dkfac/core/device.h"

/// Device memory for libraries, which take theirs beside the pool of tensors.
namespace dkfac::cuda {

/// Gives the driver back what the pool of tensors keeps for later, once the work that may use it
/// has run, for which it waits. False, with nothing done, while this thread records work, or where
/// there is no pool yet.
bool trim_memory(Device device) noexcept;

/// The code that call() returns; where it is one of `no_memory`, that of one more call, after
/// trim_memory().
template <class Call, class... Codes>
[[nodiscard]] auto with_memory(Device device, Call&& call, Codes... no_memory) {
  const auto code = call();
  return ((code == no_memory) || ...) && trim_memory(device) ? call() : code;
}

}  // namespace dkfac::cuda
