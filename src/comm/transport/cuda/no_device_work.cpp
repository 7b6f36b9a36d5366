#include "dkfac/core/error.h"

#include "comm/transport/cuda/device_work.h"

namespace dkfac::comm::cuda {
namespace {

[[noreturn]] void refuse_device_work(const char* operation) {
  throw DeviceError(detail::concat("[", operation, "] this build has no CUDA backend; use ",
                                   "host memory and a host stream"));
}

}  // namespace

bool is_built() noexcept { return false; }

void copy(const Stream&, const void*, void*, std::size_t) { refuse_device_work("comm copy"); }
void reduce(const Stream&, ReduceOp, DType, std::span<const std::byte* const>, std::int64_t,
            std::span<std::byte* const>) {
  refuse_device_work("comm reduce");
}
void gather(const Stream&, std::span<const std::byte* const>, std::span<const std::int64_t>,
            std::size_t, std::byte*) {
  refuse_device_work("comm gather");
}
std::string bus_id(Device) { refuse_device_work("bus_id"); }
std::string uuid(Device) { refuse_device_work("uuid"); }

PinnedMemory::~PinnedMemory() = default;
std::byte* PinnedMemory::at_least(Device, std::size_t) { refuse_device_work("pinned memory"); }

}  // namespace dkfac::comm::cuda
