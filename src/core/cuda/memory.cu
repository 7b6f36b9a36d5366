#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

#include "dkfac/core/error.h"

#include "core/cuda/measure.h"
#include "core/cuda/runtime.h"
#include "core/shared/cuda/device_guard.h"
#include "core/shared/cuda/handles.h"
#include "core/shared/cuda/trim.h"

namespace dkfac::cuda {
namespace {

/// Released pinned memory, reusable once `event` is complete.
struct IdlePinned {
  std::byte* data;
  cudaEvent_t event;
};

/// Gives the devices with peer access to `owner` access to the blocks of its pool.
void open_to_peers(cudaMemPool_t pool, Device owner) {
  std::vector<cudaMemAccessDesc> peers;
  for (int peer = 0; peer < device_count(); ++peer) {
    if (peer == owner.index) continue;
    int reaches = 0;
    check_runtime(cudaDeviceCanAccessPeer(&reaches, peer, owner.index), "cudaDeviceCanAccessPeer");
    if (reaches == 0) continue;
    cudaMemAccessDesc access{};
    access.location.type = cudaMemLocationTypeDevice;
    access.location.id = peer;
    access.flags = cudaMemAccessFlagsProtReadWrite;
    peers.push_back(access);
  }
  if (!peers.empty())
    check_runtime(cudaMemPoolSetAccess(pool, peers.data(), peers.size()), "cudaMemPoolSetAccess");
}

/// Makes a pool that does not return memory to the driver.
cudaMemPool_t make_pool(Device device) {
  int supported = 0;
  check_runtime(cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, device.index),
                "cudaDeviceGetAttribute");
  if (supported == 0) {
    throw DeviceError(dkfac::detail::concat(
        "[device] ", device, " has no memory pools (cudaDevAttrMemoryPoolsSupported is 0), from ",
        "which all tensors are allocated; use another driver, or a container or virtual machine ",
        "that passes them on"));
  }
  cudaMemPoolProps props{};
  props.allocType = cudaMemAllocationTypePinned;
  props.location.type = cudaMemLocationTypeDevice;
  props.location.id = device.index;
  cudaMemPool_t pool = nullptr;
  check_runtime(cudaMemPoolCreate(&pool, &props), "cudaMemPoolCreate");
  try {
    unsigned long long keep = ~0ULL;
    check_runtime(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep),
                  "cudaMemPoolSetAttribute");
    open_to_peers(pool, device);
  } catch (...) {
    (void)cudaMemPoolDestroy(pool);
    throw;
  }
  return pool;
}

/// Defers the release of a block; if that fails, the block leaks rather than being reused.
void hold(std::vector<std::byte*>& held, std::byte* bytes) noexcept {
  try {
    held.push_back(bytes);
  } catch (...) {
  }
}

/// Memory of one device. Blocks are allocated and freed on an internal stream. Streams that use
/// them follow it after an allocation, and it follows them before a release, so owners of blocks
/// need not order streams.
struct DeviceMemory {
  std::mutex mutex;
  cudaMemPool_t pool = nullptr;
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  std::vector<cudaStream_t> users;  ///< One entry for each use_stream().
  std::map<std::byte*, std::size_t> pinned;
  std::multimap<std::size_t, IdlePinned> idle_pinned;  ///< By size.
  /// Number of captures by this library. `held`: blocks released meanwhile, or while the owner of
  /// a borrowed stream recorded it: a stream cannot be followed while it is captured.
  int captures = 0;
  std::vector<std::byte*> held, held_pinned;

  /// Creates what does not exist yet: after a partial failure the next call continues.
  void make(Device device) {
    if (pool == nullptr) pool = make_pool(device);
    if (stream == nullptr)
      check_runtime(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                    "cudaStreamCreateWithFlags");
    if (event == nullptr)
      check_runtime(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                    "cudaEventCreateWithFlags");
  }

  /// Orders the internal stream after `user`. Returns false and changes nothing if this fails or if
  /// `user` is being captured, which would include the internal stream in the capture.
  bool follow(cudaStream_t user) noexcept {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const bool good = cudaStreamIsCapturing(user, &status) == cudaSuccess &&
                      status == cudaStreamCaptureStatusNone &&
                      cudaEventRecord(event, user) == cudaSuccess &&
                      cudaStreamWaitEvent(stream, event, 0) == cudaSuccess;
    if (!good) (void)cudaGetLastError();
    return good;
  }
  bool follow_users() noexcept {
    return std::all_of(users.begin(), users.end(), [&](cudaStream_t user) { return follow(user); });
  }

  void release(std::byte* bytes) noexcept {
    if (!follow_users()) return hold(held, bytes);
    (void)cudaFreeAsync(bytes, stream);
  }
  /// Releases blocks whose release was deferred.
  void release_held() noexcept {
    if (captures > 0 || (held.empty() && held_pinned.empty())) return;
    for (std::byte* bytes : std::exchange(held, {})) release(bytes);
    for (std::byte* bytes : std::exchange(held_pinned, {})) release_pinned(bytes);
  }

  /// Waits for pending releases and returns unused memory of the pool to the driver. The lock is
  /// released while it waits. Throws what ends waits (wait_watch.h): releases follow collectives,
  /// which do not end without a peer.
  void trim(Device device, std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    Stream::cuda(stream, device.index).synchronize();
    lock.lock();
    (void)cudaMemPoolTrimTo(pool, 0);
    (void)cudaGetLastError();
  }

  /// Orders `user` after the internal stream. Throws DeviceError on failure.
  void lead(cudaStream_t user) {
    check_runtime(cudaEventRecord(event, stream), "cudaEventRecord");
    check_runtime(cudaStreamWaitEvent(user, event, 0), "cudaStreamWaitEvent");
  }

  void release_pinned(std::byte* bytes) noexcept {
    if (!follow_users()) return hold(held_pinned, bytes);
    cudaEvent_t freed = nullptr;
    // Without an event to wait for, the block leaks rather than being reused.
    if (cudaEventCreateWithFlags(&freed, cudaEventDisableTiming) != cudaSuccess) {
      (void)cudaGetLastError();
      return;
    }
    if (cudaEventRecord(freed, stream) != cudaSuccess) {
      (void)cudaEventDestroy(freed);
      (void)cudaGetLastError();
      return;
    }
    idle_pinned.emplace(pinned.at(bytes), IdlePinned{bytes, freed});
  }
};

/// Returns the memory of a device. It is never destroyed: tensors of static lifetime are freed
/// last.
DeviceMemory& memory_of(Device device) {
  static auto* const all = new std::map<int, DeviceMemory>;
  static auto* const mutex = new std::mutex;
  const std::scoped_lock lock(*mutex);
  return (*all)[device.index];
}

/// Scope in which the calling thread uses the memory of a device, and the device.
struct Locked {
  DeviceGuard guard;
  DeviceMemory& memory;
  std::unique_lock<std::mutex> lock;

  explicit Locked(Device device) : guard(device), memory(memory_of(device)), lock(memory.mutex) {}
  DeviceMemory* operator->() const { return &memory; }
};

/// Number of captures of this thread.
thread_local int captures_here = 0;

void check_no_capture(std::size_t bytes) {
  if (captures_here == 0) return;
  throw DeviceError(dkfac::detail::concat(
      "[capture] ", bytes, " bytes of new memory were asked for while work is captured; run the ",
      "same work once before it is captured"));
}

/// Takes the smallest idle block of at most twice the size; null if there is none.
std::byte* take_idle(DeviceMemory& memory, std::size_t bytes) {
  const auto end = memory.idle_pinned.upper_bound(2 * bytes);
  for (auto it = memory.idle_pinned.lower_bound(bytes); it != end; ++it) {
    if (cudaEventQuery(it->second.event) != cudaSuccess) {
      (void)cudaGetLastError();  // "Not ready" must not leave an error behind.
      continue;
    }
    std::byte* const data = it->second.data;
    (void)cudaEventDestroy(it->second.event);
    memory.idle_pinned.erase(it);
    return data;
  }
  return nullptr;
}

/// Whether an allocation has failed for its size. For sizes beyond the memory there is, the runtime
/// also returns other codes, such as cudaErrorInvalidValue.
bool is_too_large(cudaError_t code, std::size_t bytes) {
  if (code == cudaSuccess || code == cudaErrorMemoryAllocation) return code != cudaSuccess;
  std::size_t free = 0, total = 0;
  const bool known = cudaMemGetInfo(&free, &total) == cudaSuccess;
  return known && bytes > total;
}

}  // namespace

void use_stream(Device device, CUstream_st* stream) {
  check_device(device);
  DKFAC_CHECK(stream != cudaStreamPerThread,
              "[stream] cudaStreamPerThread is another stream in every thread; make one with "
              "cudaStreamCreateWithFlags");
  Locked memory(device);
  memory->make(device);
  memory->users.push_back(stream);
}

void leave_stream(Device device, CUstream_st* stream) noexcept {
  Locked memory(device);
  const auto found = std::find(memory->users.begin(), memory->users.end(), stream);
  if (found == memory->users.end()) return;
  memory->users.erase(found);
  // Blocks that it uses may be freed once it is no longer among the users. A stream being captured
  // is not followed: the owner of a graph keeps its memory alive.
  (void)memory->follow(stream);
}

std::byte* allocate(Device device, CUstream_st* stream, std::size_t bytes) {
  check_no_capture(bytes);
  Locked memory(device);
  memory->make(device);
  memory->release_held();
  void* data = nullptr;
  cudaError_t code = cudaMallocFromPoolAsync(&data, bytes, memory->pool, memory->stream);
  if (is_too_large(code, bytes)) {
    (void)cudaGetLastError();
    memory->trim(device, memory.lock);
    code = cudaMallocFromPoolAsync(&data, bytes, memory->pool, memory->stream);
  }
  if (is_too_large(code, bytes)) {
    (void)cudaGetLastError();
    return nullptr;
  }
  check_runtime(code, "cudaMallocFromPoolAsync");
  try {
    memory->lead(stream);
  } catch (...) {
    (void)cudaFreeAsync(data, memory->stream);  // Not used yet.
    throw;
  }
  return static_cast<std::byte*>(data);
}

bool trim_memory(Device device) {
  if (captures_here > 0) return false;
  Locked memory(device);
  if (memory->pool == nullptr || memory->stream == nullptr) return false;
  memory->release_held();
  memory->trim(device, memory.lock);
  return true;
}

std::string describe_memory(Device device) {
  const DeviceGuard guard(device);
  std::size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) {
    (void)cudaGetLastError();
    return "how many are free is not known";
  }
  const auto tenths = [](std::size_t bytes) { return static_cast<double>(10 * bytes >> 30) / 10; };
  return dkfac::detail::concat(tenths(free), " of ", tenths(total), " GiB are free");
}

std::optional<double> free_memory(Device device) {
  const DeviceGuard guard(device);
  std::size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) == cudaSuccess) return static_cast<double>(free);
  (void)cudaGetLastError();
  return {};
}

void release(Device device, std::byte* bytes) noexcept {
  Locked memory(device);
  if (memory->captures > 0) return hold(memory->held, bytes);
  memory->release(bytes);
}

std::byte* allocate_pinned(Device device, std::size_t bytes) {
  check_no_capture(bytes);
  Locked memory(device);
  memory->make(device);
  memory->release_held();
  if (std::byte* idle = take_idle(memory.memory, bytes)) return idle;
  void* data = nullptr;
  const cudaError_t code = cudaHostAlloc(&data, bytes, cudaHostAllocDefault);
  if (code == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return nullptr;
  }
  check_runtime(code, "cudaHostAlloc");
  memory->pinned[static_cast<std::byte*>(data)] = bytes;
  return static_cast<std::byte*>(data);
}

void release_pinned(Device device, std::byte* bytes) noexcept {
  Locked memory(device);
  if (memory->captures > 0) return hold(memory->held_pinned, bytes);
  memory->release_pinned(bytes);
}

void hold_memory(Device device) {
  Locked memory(device);
  ++memory->captures;
  ++captures_here;
}

void let_memory_go(Device device) noexcept {
  Locked memory(device);
  --captures_here;
  --memory->captures;
  memory->release_held();
}

namespace {

std::int64_t attribute(cudaMemPool_t pool, cudaMemPoolAttr which) {
  unsigned long long bytes = 0;
  check_runtime(cudaMemPoolGetAttribute(pool, which, &bytes), "cudaMemPoolGetAttribute");
  return static_cast<std::int64_t>(bytes);
}

}  // namespace

MemoryUse pool_use(Device device) {
  check_device(device);
  Locked memory(device);
  memory->make(device);
  return {.used = attribute(memory->pool, cudaMemPoolAttrUsedMemCurrent),
          .peak_used = attribute(memory->pool, cudaMemPoolAttrUsedMemHigh),
          .reserved = attribute(memory->pool, cudaMemPoolAttrReservedMemCurrent),
          .peak_reserved = attribute(memory->pool, cudaMemPoolAttrReservedMemHigh)};
}

void reset_pool_peaks(Device device) {
  check_device(device);
  Locked memory(device);
  memory->make(device);
  for (const cudaMemPoolAttr which : {cudaMemPoolAttrUsedMemHigh, cudaMemPoolAttrReservedMemHigh}) {
    unsigned long long zero = 0;  // The only allowed value.
    check_runtime(cudaMemPoolSetAttribute(memory->pool, which, &zero), "cudaMemPoolSetAttribute");
  }
}

}  // namespace dkfac::cuda
