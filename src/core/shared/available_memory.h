#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "dkfac/core/device.h"

/// Memory that is left, for checks before an allocation: the system would overcommit, and later
/// kill the process without a message.
namespace dkfac {

/// Returns the bytes that this process may still allocate on the host: the available memory of the
/// machine, swap included, or less by a limit of its address space or of a control group, version 1
/// or 2, on the path from its own to the root. Nothing if unknown. `root` stands for "/" in tests.
[[nodiscard]] std::optional<double> available_memory(const std::string& root = "");
/// The same of a device: on CUDA its free memory and what this process's pool has left.
[[nodiscard]] std::optional<double> available_memory(Device device);
/// Equal in processes that share the memory which available_memory() returns; below 2^53.
[[nodiscard]] std::uint64_t memory_group();
[[nodiscard]] std::string bytes_text(double bytes);  ///< E.g. "3.25 GiB".

}  // namespace dkfac
