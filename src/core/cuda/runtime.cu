#include <algorithm>

#include <cuda_runtime_api.h>

#include "dkfac/core/error.h"

#include "core/cuda/runtime.h"
#include "core/shared/cuda/device_guard.h"
#include "core/shared/cuda/handles.h"

namespace dkfac::cuda {
namespace {

/// Whether this process has a context on the device; true where that is not known. The library does
/// not link the driver, so the runtime gives its function.
bool has_context(int device) noexcept {
  using GetState = int(int device, unsigned* flags, int* active);
  static auto* const get_state = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
    constexpr unsigned kSince = 7000;
    const cudaError_t code = cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &found,
                                                              kSince, cudaEnableDefault, &result);
#else
    const cudaError_t code =
        cudaGetDriverEntryPoint("cuDevicePrimaryCtxGetState", &found, cudaEnableDefault, &result);
#endif
    if (code != cudaSuccess) (void)cudaGetLastError();
    return reinterpret_cast<GetState*>(code == cudaSuccess ? found : nullptr);
  }();
  unsigned flags = 0;
  int active = 0;
  return get_state == nullptr || get_state(device, &flags, &active) != 0 || active != 0;
}

}  // namespace

DeviceGuard::DeviceGuard(Device device) noexcept : now_(device.index) {
  if (cudaGetDevice(&before_) != cudaSuccess) before_ = device.index;
  if (before_ != now_) (void)cudaSetDevice(now_);
}

DeviceGuard::~DeviceGuard() {
  // From CUDA 12 on cudaSetDevice() makes a context, of hundreds of MiB, where there is none.
  if (before_ != now_ && has_context(before_)) (void)cudaSetDevice(before_);
}

int device_count() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  (void)cudaGetLastError();  // A missing driver or device must not leave an error behind.
  return 0;
}

void check_device(Device device) {
  const int count = device_count();
  if (device.index >= 0 && device.index < count) return;
  throw DeviceError(detail::concat("[device] there is no ", device, ": the number of CUDA devices ",
                                   "of this process is ", count));
}

CUstream_st* create_stream(Device device, Priority priority) {
  check_device(device);
  const DeviceGuard guard(device);
  int least = 0, greatest = 0;
  check_runtime(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                "cudaDeviceGetStreamPriorityRange");
  // 0 is the least priority of present devices, and that of streams created elsewhere.
  const int chosen = priority == Priority::low ? least : std::max(greatest, least - 1);
  cudaStream_t stream = nullptr;
  check_runtime(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, chosen),
                "cudaStreamCreateWithPriority");
  try {
    use_stream(device, stream);
  } catch (...) {
    (void)cudaStreamDestroy(stream);
    throw;
  }
  return stream;
}

void destroy_stream(Device device, CUstream_st* stream) noexcept {
  const DeviceGuard guard(device);
  leave_stream(device, stream);
  (void)cudaStreamDestroy(stream);
}

void synchronize(Device device, CUstream_st* stream) {
  const DeviceGuard guard(device);
  check_runtime(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

CUevent_st* create_event(Device device) {
  check_device(device);
  const DeviceGuard guard(device);
  cudaEvent_t event = nullptr;
  check_runtime(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                "cudaEventCreateWithFlags");
  return event;
}

void destroy_event(Device device, CUevent_st* event) noexcept {
  const DeviceGuard guard(device);
  (void)cudaEventDestroy(event);
}

void record(Device device, CUevent_st* event, CUstream_st* stream) {
  const DeviceGuard guard(device);
  check_runtime(cudaEventRecord(event, stream), "cudaEventRecord");
}

bool done(Device device, CUevent_st* event) {
  const DeviceGuard guard(device);
  const cudaError_t code = cudaEventQuery(event);
  if (code == cudaErrorNotReady) {
    (void)cudaGetLastError();  // Otherwise the next launch on this thread would report it.
    return false;
  }
  check_runtime(code, "cudaEventQuery");
  return true;
}

void synchronize(Device device, CUevent_st* event) {
  const DeviceGuard guard(device);
  check_runtime(cudaEventSynchronize(event), "cudaEventSynchronize");
}

void stream_wait(Device device, CUstream_st* stream, CUevent_st* event) {
  const DeviceGuard guard(device);
  check_runtime(cudaStreamWaitEvent(stream, event, 0), "cudaStreamWaitEvent");
}

}  // namespace dkfac::cuda
