#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "dkfac/comm/communicator.h"

/// What comm puts on CUDA streams. Nothing here blocks the host but what says so. Without CUDA
/// every function but is_built() throws DeviceError.
namespace dkfac::comm::cuda {

/// Whether this build has CUDA.
[[nodiscard]] bool is_built() noexcept;

/// Between memory of the device and of the device or PinnedMemory. bytes may be 0.
void copy(const Stream& stream, const void* from, void* to, std::size_t bytes);

/// out[i] = reduction over r of inputs[r][i] for every out of `outputs`, with the bits of
/// reduce_in_order() in comm/reduce.h; on the device, in one launch. At most kMaxRanks of each.
void reduce(const Stream& stream, ReduceOp op, DType dtype,
            std::span<const std::byte* const> inputs, std::int64_t count,
            std::span<std::byte* const> outputs);

/// Segment r, elements [offsets[r], offsets[r + 1]) of `out`, from segments[r]; in one launch. A
/// segment that lies there already is not touched. At most kMaxRanks segments.
void gather(const Stream& stream, std::span<const std::byte* const> segments,
            std::span<const std::int64_t> offsets, std::size_t element, std::byte* out);

/// Names the device among all of its machine, e.g. "0000:18:00.0".
[[nodiscard]] std::string bus_id(Device device);
/// Names it, or its part, among all devices of the world: 32 hexadecimal digits; "" where the
/// driver does not tell.
[[nodiscard]] std::string uuid(Device device);

/// Host memory that copies of every device reach without a detour. Grows; growing and freeing may
/// block the host.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  /// At least `bytes`; what it held before is lost where it has to grow. `device`: one that is in
  /// use, so that no other is woken.
  [[nodiscard]] std::byte* at_least(Device device, std::size_t bytes);
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  Device device_;
};

}  // namespace dkfac::comm::cuda
