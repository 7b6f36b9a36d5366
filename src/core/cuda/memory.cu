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

/// Pinned memory that was given back; for others once `event` has happened.
struct IdlePinned {
  std::byte* data;
  cudaEvent_t event;
};

/// Lets the other devices that can reach `owner` use the blocks of its pool, as peers' copies do.
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

/// A pool that keeps what it has.
cudaMemPool_t make_pool(Device device) {
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

/// Keeps what somebody lets go of; what cannot be noted is lost, not used twice.
void hold(std::vector<std::byte*>& held, std::byte* bytes) noexcept {
  try {
    held.push_back(bytes);
  } catch (...) {
  }
}

/// Memory of one device. Blocks are made and freed on a stream of its own, which follows, resp. is
/// followed by, the streams that use them: no order has to be known by who owns a block.
struct DeviceMemory {
  std::mutex mutex;
  cudaMemPool_t pool = nullptr;
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  std::vector<cudaStream_t> users;  ///< One entry for each use_stream().
  std::map<std::byte*, std::size_t> pinned;
  std::multimap<std::size_t, IdlePinned> idle_pinned;  ///< By size.
  /// Recordings of ours under way, and what was let go of meanwhile, or while somebody else
  /// recorded: a stream that is being recorded cannot be followed, since its work is not there yet.
  int captures = 0;
  std::vector<std::byte*> held, held_pinned;

  /// What is there already stays: a call that failed halfway is taken up again by the next.
  void make(Device device) {
    if (pool == nullptr) pool = make_pool(device);
    if (stream == nullptr)
      check_runtime(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                    "cudaStreamCreateWithFlags");
    if (event == nullptr)
      check_runtime(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                    "cudaEventCreateWithFlags");
  }

  /// False, with nothing changed, where that cannot be: a stream that its owner records must not
  /// draw this one into the recording.
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
  /// What could not be let go of before.
  void release_held() noexcept {
    if (captures > 0 || (held.empty() && held_pinned.empty())) return;
    for (std::byte* bytes : std::exchange(held, {})) release(bytes);
    for (std::byte* bytes : std::exchange(held_pinned, {})) release_pinned(bytes);
  }

  /// What is still to be let go of, and what the pool keeps in pieces, goes back to the driver.
  /// Others may use the memory meanwhile.
  void trim(std::unique_lock<std::mutex>& lock) noexcept {
    lock.unlock();
    (void)cudaStreamSynchronize(stream);
    lock.lock();
    (void)cudaMemPoolTrimTo(pool, 0);
    (void)cudaGetLastError();
  }

  /// Lets work on `user` follow this stream. Throws DeviceError where it cannot.
  void lead(cudaStream_t user) {
    check_runtime(cudaEventRecord(event, stream), "cudaEventRecord");
    check_runtime(cudaStreamWaitEvent(user, event, 0), "cudaStreamWaitEvent");
  }

  void release_pinned(std::byte* bytes) noexcept {
    if (!follow_users()) return hold(held_pinned, bytes);
    cudaEvent_t freed = nullptr;
    // Without an event to wait for, the block is lost rather than used twice.
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

/// Never destroyed: tensors of static lifetime are freed after everything else.
DeviceMemory& memory_of(Device device) {
  static auto* const all = new std::map<int, DeviceMemory>;
  static auto* const mutex = new std::mutex;
  const std::scoped_lock lock(*mutex);
  return (*all)[device.index];
}

/// Recordings under way of this thread.
thread_local int captures_here = 0;

void check_no_capture(std::size_t bytes) {
  if (captures_here == 0) return;
  throw DeviceError(dkfac::detail::concat(
      "[capture] ", bytes, " bytes of new memory were asked for while work is recorded; run the ",
      "same work once before it is recorded"));
}

/// The smallest idle block that is not more than twice too large; null if there is none.
std::byte* take_idle(DeviceMemory& memory, std::size_t bytes) {
  const auto end = memory.idle_pinned.upper_bound(2 * bytes);
  for (auto it = memory.idle_pinned.lower_bound(bytes); it != end; ++it) {
    if (cudaEventQuery(it->second.event) != cudaSuccess) {
      (void)cudaGetLastError();  // What is not ready is no error that should stay.
      continue;
    }
    std::byte* const data = it->second.data;
    (void)cudaEventDestroy(it->second.event);
    memory.idle_pinned.erase(it);
    return data;
  }
  return nullptr;
}

}  // namespace

void use_stream(Device device, CUstream_st* stream) {
  check_device(device);
  DKFAC_CHECK(stream != cudaStreamPerThread,
              "[stream] cudaStreamPerThread is another stream in every thread; make one with "
              "cudaStreamCreateWithFlags");
  const DeviceGuard guard(device);
  DeviceMemory& memory = memory_of(device);
  const std::scoped_lock lock(memory.mutex);
  memory.make(device);
  memory.users.push_back(stream);
}

void leave_stream(Device device, CUstream_st* stream) noexcept {
  const DeviceGuard guard(device);
  DeviceMemory& memory = memory_of(device);
  const std::scoped_lock lock(memory.mutex);
  const auto found = std::find(memory.users.begin(), memory.users.end(), stream);
  if (found == memory.users.end()) return;
  memory.users.erase(found);
  // Blocks that it uses may be freed once it is no longer among the users. One that its owner
  // records is not followed: what a graph holds is its owner's to keep.
  (void)memory.follow(stream);
}

std::byte* allocate(Device device, CUstream_st* stream, std::size_t bytes) {
  check_no_capture(bytes);
  const DeviceGuard guard(device);
  DeviceMemory& memory = memory_of(device);
  std::unique_lock lock(memory.mutex);
  memory.make(device);
  memory.release_held();
  void* data = nullptr;
  cudaError_t code = cudaMallocFromPoolAsync(&data, bytes, memory.pool, memory.stream);
  if (code == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    memory.trim(lock);
    code = cudaMallocFromPoolAsync(&data, bytes, memory.pool, memory.stream);
  }
  if (code == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return nullptr;
  }
  check_runtime(code, "cudaMallocFromPoolAsync");
  try {
    memory.lead(stream);
  } catch (...) {
    (void)cudaFreeAsync(data, memory.stream);  // Nobody has used it.
    throw;
  }
  return static_cast<std::byte*>(data);
}

bool trim_memory(Device device) noexcept {
  if (captures_here > 0) return false;
  const DeviceGuard guard(device);
  DeviceMemory& memory = memory_of(device);
  std::unique_lock lock(memory.mutex);
  if (memory.pool == nullptr || memory.stream == nullptr) return false;
  memory.release_held();
  memory.trim(lock);
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

void release(Device device, std::byte* bytes) noexcept {
  const DeviceGuard guard(device);
  DeviceMemory& memory = memory_of(device);
  const std::scoped_lock lock(memory.mutex);
  if (memory.captures > 0) return hold(memory.held, bytes);
  memory.release(bytes);
}

std::byte* allocate_pinned(Device device, std::size_t bytes) {
  check_no_capture(bytes);
  const DeviceGuard guard(device);
  DeviceMemory& memory = memory_of(device);
  const std::scoped_lock lock(memory.mutex);
  memory.make(device);
  memory.release_held();
  if (std::byte* idle = take_idle(memory, bytes)) return idle;
  void* data = nullptr;
  const cudaError_t code = cudaHostAlloc(&data, bytes, cudaHostAllocDefault);
  if (code == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return nullptr;
  }
  check_runtime(code, "cudaHostAlloc");
  memory.pinned[static_cast<std::byte*>(data)] = bytes;
  return static_cast<std::byte*>(data);
}

void release_pinned(Device device, std::byte* bytes) noexcept {
  const DeviceGuard guard(device);
  DeviceMemory& memory = memory_of(device);
  const std::scoped_lock lock(memory.mutex);
  if (memory.captures > 0) return hold(memory.held_pinned, bytes);
  memory.release_pinned(bytes);
}

void hold_memory(Device device) {
  DeviceMemory& memory = memory_of(device);
  const std::scoped_lock lock(memory.mutex);
  ++memory.captures;
  ++captures_here;
}

void let_memory_go(Device device) noexcept {
  const DeviceGuard guard(device);
  DeviceMemory& memory = memory_of(device);
  const std::scoped_lock lock(memory.mutex);
  --captures_here;
  --memory.captures;
  memory.release_held();
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
  const DeviceGuard guard(device);
  DeviceMemory& memory = memory_of(device);
  const std::scoped_lock lock(memory.mutex);
  memory.make(device);
  return {.used = attribute(memory.pool, cudaMemPoolAttrUsedMemCurrent),
          .peak_used = attribute(memory.pool, cudaMemPoolAttrUsedMemHigh),
          .reserved = attribute(memory.pool, cudaMemPoolAttrReservedMemCurrent),
          .peak_reserved = attribute(memory.pool, cudaMemPoolAttrReservedMemHigh)};
}

void reset_pool_peaks(Device device) {
  check_device(device);
  const DeviceGuard guard(device);
  DeviceMemory& memory = memory_of(device);
  const std::scoped_lock lock(memory.mutex);
  memory.make(device);
  for (const cudaMemPoolAttr which : {cudaMemPoolAttrUsedMemHigh, cudaMemPoolAttrReservedMemHigh}) {
    unsigned long long zero = 0;  // The only value that is taken.
    check_runtime(cudaMemPoolSetAttribute(memory.pool, which, &zero), "cudaMemPoolSetAttribute");
  }
}

}  // namespace dkfac::cuda
