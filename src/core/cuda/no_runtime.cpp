#include "dkfac/core/error.h"

#include "core/cuda/library_info.h"
#include "core/cuda/runtime.h"

namespace dkfac::cuda {
namespace {

[[noreturn]] void refuse_runtime(const char* operation) {
  throw DeviceError(
      detail::concat("[", operation, "] this build has no CUDA backend; use ", "Device::cpu()"));
}

}  // namespace

int device_count() noexcept { return 0; }
void check_device(Device) { refuse_runtime("device"); }
CudaInfo library_info() { return {}; }

std::byte* allocate(Device, CUstream_st*, std::size_t) { refuse_runtime("tensor"); }
std::string describe_memory(Device) { return {}; }
std::optional<double> free_memory(Device) { return {}; }
void release(Device, std::byte*) noexcept {}
std::byte* allocate_pinned(Device, std::size_t) { refuse_runtime("tensor"); }
void release_pinned(Device, std::byte*) noexcept {}

void use_stream(Device, CUstream_st*) { refuse_runtime("stream"); }
void leave_stream(Device, CUstream_st*) noexcept {}
CUstream_st* create_stream(Device, Priority) { refuse_runtime("stream"); }
void destroy_stream(Device, CUstream_st*) noexcept {}
void synchronize(Device, CUstream_st*) { refuse_runtime("synchronize"); }

CUevent_st* create_event(Device) { refuse_runtime("event"); }
void destroy_event(Device, CUevent_st*) noexcept {}
void record(Device, CUevent_st*, CUstream_st*) { refuse_runtime("event"); }
bool done(Device, CUevent_st*) { refuse_runtime("event"); }
void synchronize(Device, CUevent_st*) { refuse_runtime("event"); }
void stream_wait(Device, CUstream_st*, CUevent_st*) { refuse_runtime("stream"); }

void begin_capture(Device, CUstream_st*) { refuse_runtime("capture"); }
std::shared_ptr<void> end_capture(Device, CUstream_st*) { refuse_runtime("capture"); }
void drop_capture(Device, CUstream_st*) noexcept {}
bool is_captured(Device, CUstream_st*) { refuse_runtime("capture"); }
void launch_captured(Device, const std::shared_ptr<void>&, CUstream_st*) {
  refuse_runtime("capture");
}

}  // namespace dkfac::cuda
