#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include <cuda_runtime_api.h>

#include "dkfac/core/cuda/device_guard.h"
#include "dkfac/core/cuda/handles.h"

#include "core/cuda/runtime.h"

namespace dkfac::cuda {
namespace {

/// Memory of one device. Blocks are made and freed on a stream of its own, which follows, resp. is
/// followed by, the streams that use them: no order has to be known by who owns a block.
struct DeviceMemory {
  std::mutex mutex;
  cudaMemPool_t pool = nullptr;
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  std::vector<cudaStream_t> users;

  void make(Device device) {
    if (pool != nullptr) return;
    cudaMemPoolProps props{};
    props.allocType = cudaMemAllocationTypePinned;
    props.location.type = cudaMemLocationTypeDevice;
    props.location.id = device.index;
    check_runtime(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                  "cudaStreamCreateWithFlags");
    check_runtime(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                  "cudaEventCreateWithFlags");
    check_runtime(cudaMemPoolCreate(&pool, &props), "cudaMemPoolCreate");
    unsigned long long keep = ~0ULL;
    check_runtime(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep),
                  "cudaMemPoolSetAttribute");
  }
};

/// Never destroyed: tensors of static lifetime are freed after everything else.
DeviceMemory& memory_of(Device device) {
  static auto* const all = new std::map<int, DeviceMemory>;
  static auto* const mutex = new std::mutex;
  const std::scoped_lock lock(*mutex);
  return (*all)[device.index];
}

}  // namespace

DeviceGuard::DeviceGuard(Device device) noexcept : now_(device.index) {
  if (cudaGetDevice(&before_) != cudaSuccess) before_ = device.index;
  if (before_ != now_) (void)cudaSetDevice(now_);
}

DeviceGuard::~DeviceGuard() {
  if (before_ != now_) (void)cudaSetDevice(before_);
}

int device_count() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  (void)cudaGetLastError();  // No driver, or no device: not an error that should stay.
  return 0;
}

std::byte* allocate(Device device, CUstream_st* stream, std::size_t bytes) {
  const DeviceGuard guard(device);
  DeviceMemory& memory = memory_of(device);
  const std::scoped_lock lock(memory.mutex);
  memory.make(device);
  void* data = nullptr;
  const cudaError_t code = cudaMallocFromPoolAsync(&data, bytes, memory.pool, memory.stream);
  if (code == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return nullptr;
  }
  check_runtime(code, "cudaMallocFromPoolAsync");
  check_runtime(cudaEventRecord(memory.event, memory.stream), "cudaEventRecord");
  check_runtime(cudaStreamWaitEvent(stream, memory.event, 0), "cudaStreamWaitEvent");
  return static_cast<std::byte*>(data);
}

void release(Device device, std::byte* bytes) noexcept {
  const DeviceGuard guard(device);
  DeviceMemory& memory = memory_of(device);
  const std::scoped_lock lock(memory.mutex);
  for (cudaStream_t user : memory.users) {
    (void)cudaEventRecord(memory.event, user);
    (void)cudaStreamWaitEvent(memory.stream, memory.event, 0);
  }
  (void)cudaFreeAsync(bytes, memory.stream);
}

std::byte* allocate_pinned(Device device, std::size_t bytes) {
  const DeviceGuard guard(device);
  void* data = nullptr;
  const cudaError_t code = cudaHostAlloc(&data, bytes, cudaHostAllocDefault);
  if (code == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return nullptr;
  }
  check_runtime(code, "cudaHostAlloc");
  return static_cast<std::byte*>(data);
}

void release_pinned(Device device, std::byte* bytes) noexcept {
  const DeviceGuard guard(device);
  (void)cudaFreeHost(bytes);
}

CUstream_st* create_stream(Device device, Priority priority) {
  const DeviceGuard guard(device);
  int least = 0, greatest = 0;
  check_runtime(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                "cudaDeviceGetStreamPriorityRange");
  // 0 is the least there is on today's devices, and what foreign streams have.
  const int chosen = priority == Priority::low ? least : std::max(greatest, least - 1);
  cudaStream_t stream = nullptr;
  check_runtime(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, chosen),
                "cudaStreamCreateWithPriority");
  DeviceMemory& memory = memory_of(device);
  const std::scoped_lock lock(memory.mutex);
  memory.make(device);
  memory.users.push_back(stream);
  return stream;
}

void destroy_stream(Device device, CUstream_st* stream) noexcept {
  const DeviceGuard guard(device);
  DeviceMemory& memory = memory_of(device);
  {
    const std::scoped_lock lock(memory.mutex);
    std::erase(memory.users, stream);
    // Blocks that it uses may be freed once it is no longer among the users.
    (void)cudaEventRecord(memory.event, stream);
    (void)cudaStreamWaitEvent(memory.stream, memory.event, 0);
  }
  (void)cudaStreamDestroy(stream);
}

void synchronize(Device device, CUstream_st* stream) {
  const DeviceGuard guard(device);
  check_runtime(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

CUevent_st* create_event(Device device) {
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
  if (code == cudaErrorNotReady) return false;
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
