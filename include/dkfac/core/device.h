#pragma once

#include <ostream>
#include <vector>

#include "dkfac/core/export.h"

namespace dkfac {

/// Device on which memory lives and work runs. A plain value; there is no current device.
struct DKFAC_API Device {
  enum class Kind : unsigned char { cpu, cuda };
  Kind kind = Kind::cpu;
  int index = 0;

  static constexpr Device cpu() { return {Kind::cpu, 0}; }
  static constexpr Device cuda(int device_index = 0) { return {Kind::cuda, device_index}; }
  [[nodiscard]] constexpr bool is_cuda() const { return kind == Kind::cuda; }
  bool operator==(const Device&) const = default;
};

DKFAC_API std::ostream& operator<<(std::ostream& out, Device device);  ///< "cpu", "cuda:0"

/// Lists the CPU, then every visible CUDA device; only the CPU in a build without CUDA.
[[nodiscard]] DKFAC_API std::vector<Device> available_devices();

}  // namespace dkfac
