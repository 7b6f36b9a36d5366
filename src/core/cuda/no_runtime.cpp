#include "dkfac/core/error.h"

#include "core/cuda/library_info.h"
#include "core/cuda/runtime.h"

namespace dkfac::cuda {
namespace {

[[noreturn]] void refuse(const char* operation) {
  throw DeviceError(
      detail::concat("[", operation, "] this build has no CUDA backend; use ", "Device::cpu()"));
}

}  // namespace

int device_count() noexcept { return 0; }
void check_device(Device) { refuse("device"); }
CudaInfo library_info() { return {}; }

std::byte* allocate(Device, CUstream_st*, std::size_t) { refuse("tensor"); }
std::string describe_memory(Device) { return {}; }
void release(Device, std::byte*) noexcept {}
std::byte* allocate_pinned(Device, std::size_t) { refuse("tensor"); }
void release_pinned(Device, std::byte*) noexcept {}

void use_stream(Device, CUstream_st*) { refuse("stream"); }
void leave_stream(Device, CUstream_st*) noexcept {}
CUstream_st* create_stream(Device, Priority) { refuse("stream"); }
void destroy_stream(Device, CUstream_st*) noexcept {}
void synchronize(Device, CUstream_st*) { refuse("synchronize"); }

CUevent_st* create_event(Device) { refuse("event"); }
void destroy_event(Device, CUevent_st*) noexcept {}
void record(Device, CUevent_st*, CUstream_st*) { refuse("event"); }
bool done(Device, CUevent_st*) { refuse("event"); }
void synchronize(Device, CUevent_st*) { refuse("event"); }
void stream_wait(Device, CUstream_st*, CUevent_st*) { refuse("stream"); }

void begin_capture(Device, CUstream_st*) { refuse("capture"); }
std::shared_ptr<void> end_capture(Device, CUstream_st*) { refuse("capture"); }
void drop_capture(Device, CUstream_st*) noexcept {}
void launch_captured(Device, const std::shared_ptr<void>&, CUstream_st*) { refuse("capture"); }

}  // namespace dkfac::cuda
