#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "dkfac/comm/communicator.h"

/// Work of comm on CUDA streams. Functions do not block the host unless stated otherwise. Without
/// CUDA every function except is_built() throws DeviceError.
namespace dkfac::comm::cuda {

/// Whether this build has CUDA.
[[nodiscard]] bool is_built() noexcept;

/// Copies between memory of the device and memory of the device or PinnedMemory. bytes may be 0.
void copy(const Stream& stream, const void* from, void* to, std::size_t bytes);

/// out[i] = reduction over r of inputs[r][i] for every out of `outputs`, in one kernel launch, with
/// the bits of reduce_in_order() (comm/transport/reduce.h). At most kMaxRanks of each.
void reduce(const Stream& stream, ReduceOp op, DType dtype,
            std::span<const std::byte* const> inputs, std::int64_t count,
            std::span<std::byte* const> outputs);

/// Copies segments[r] to elements [offsets[r], offsets[r + 1]) of `out` for every r, in one kernel
/// launch. A segment that is already in place is not accessed. At most kMaxRanks segments.
void gather(const Stream& stream, std::span<const std::byte* const> segments,
            std::span<const std::int64_t> offsets, std::size_t element, std::byte* out);

/// PCI bus id of the device, unique on its machine, e.g. "0000:18:00.0".
[[nodiscard]] std::string bus_id(Device device);
/// Globally unique id of the device or its MIG instance as 32 hexadecimal digits; "" if the driver
/// does not provide it.
[[nodiscard]] std::string uuid(Device device);

/// Growing buffer of pinned host memory. Growing and freeing may block the host.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  /// Returns at least `bytes`; the content is lost if the buffer has to grow. `device` is a device
  /// in use, so that no other is initialized.
  [[nodiscard]] std::byte* at_least(Device device, std::size_t bytes);
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  Device device_;
};

}  // namespace dkfac::comm::cuda
