#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>

#include "state.h"

// The part of the CUDA runtime that the library calls. Work that is incorrect throws through it.
namespace {

using emulated::state;
thread_local int current_device = 0;
thread_local int shown_device = -1;  ///< The only device visible to this thread.
thread_local cudaError_t last_error = cudaSuccess;
using Lock = std::scoped_lock<emulated::DeviceMutex>;

/// Returns the status of a call; all but success are kept until cudaGetLastError reads them.
cudaError_t returned(cudaError_t code) {
  if (code != cudaSuccess) last_error = code;
  return code;
}

void wait_on_host(CUstream_st* stream, emulated::Ticket ticket) {
  ++state().counters.host_waits;
  emulated::run(stream, ticket);
}

/// Returns an error from calls that a recording thread must not make.
#define EMULATED_NOT_WHILE_RECORDING                                                    \
  if (const cudaError_t code = emulated::refuse_while_recording(); code != cudaSuccess) \
  return returned(code)
#define EMULATED_NOT_WHILE_RECORDED(stream)                                                  \
  if (const cudaError_t code = emulated::refuse_while_recorded(stream); code != cudaSuccess) \
  return returned(code)

struct Copy {
  void* to;
  std::size_t to_pitch;
  const void* from;
  std::size_t from_pitch, width, height;
  void operator()() const {
    for (std::size_t i = 0; i < height; ++i)
      std::memcpy(static_cast<std::byte*>(to) + i * to_pitch,
                  static_cast<const std::byte*>(from) + i * from_pitch, width);
  }
};

/// Copies when the stream comes to it, pageable memory as well: that a call waits for it is not
/// documented since CUDA 12.
cudaError_t copy(const Copy& work, cudaStream_t stream) {
  const Lock lock(state().mutex);
  const auto pageable = [](const void* data) {
    return !emulated::is_device_memory(data) && !emulated::is_pinned_memory(data);
  };
  // A device would accept it, and read or write there whenever the graph runs.
  if (pageable(work.from) || pageable(work.to)) EMULATED_NOT_WHILE_RECORDED(stream);
  emulated::submit(stream, work);
  return cudaSuccess;
}

/// Maps this thread's device to the physical one.
int physical(int device) { return shown_device < 0 ? device : shown_device; }

/// cuDevicePrimaryCtxGetState() of the driver.
int primary_context_state(int device, unsigned* flags, int* active) {
  *flags = 0;
  *active = emulated::has_context(device) ? 1 : 0;
  return 0;
}

}  // namespace

void emulated::show_device(int device) { shown_device = device; }

void emulated::forget_contexts() {
  const Lock lock(state().mutex);
  state().contexts.clear();
}
bool emulated::has_context(int device) {
  const Lock lock(state().mutex);
  return state().contexts.contains(physical(device));
}

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  const char* devices = std::getenv("DKFAC_EMULATED_DEVICES");
  *count = devices == nullptr ? 1 : std::atoi(devices);
  if (shown_device >= 0) *count = shown_device < *count ? 1 : 0;
  return returned(*count > 0 ? cudaSuccess : cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int device) {
  int count = 0;
  (void)cudaGetDeviceCount(&count);
  if (device < 0 || device >= count) return returned(cudaErrorInvalidDevice);
  const Lock lock(state().mutex);
  state().contexts.insert(physical(device));
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  const bool known = std::strcmp(symbol, "cuDevicePrimaryCtxGetState") == 0;
  *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  *function = known ? reinterpret_cast<void*>(&primary_context_state) : nullptr;
  return cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated:
      return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorStreamCaptureUnjoined:
      return "cudaErrorStreamCaptureUnjoined";
    case cudaErrorStreamCaptureIsolation:
      return "cudaErrorStreamCaptureIsolation";
    default:
      return "cudaErrorInvalidValue";
  }
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    case cudaErrorStreamCaptureUnjoined:
      return "capturing stream has unjoined work";
    case cudaErrorStreamCaptureIsolation:
      return "dependency created on uncaptured work in another stream";
    default:
      return "invalid argument";
  }
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrMultiProcessorCount      ? 4
           : attribute == cudaDevAttrComputeCapabilityMajor ? 9
           : attribute == cudaDevAttrMemoryPoolsSupported   ? (state().no_pools ? 0 : 1)
           : attribute == cudaDevAttrClockRate              ? 1000000
                                                            : 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int device) {
  int count = 0;
  (void)cudaGetDeviceCount(&count);
  if (device < 0 || device >= count) return returned(cudaErrorInvalidDevice);
  device = physical(device);
  std::memset(out, 0, sizeof *out);
  out->uuid.bytes[0] = static_cast<char>(device + 1);
  const char* letters = std::getenv("DKFAC_EMULATED_MODELS");
  const bool named = letters != nullptr && static_cast<std::size_t>(device) < std::strlen(letters);
  std::snprintf(out->name, sizeof out->name, "emulated%s%.1s", named ? " " : "",
                named ? letters + device : "");
  out->major = 9;
  out->multiProcessorCount = 4;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  int count = 0;
  (void)cudaGetDeviceCount(&count);
  if (device < 0 || device >= count) return returned(cudaErrorInvalidDevice);
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02x:00.0", physical(device));
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = *total = std::size_t{1} << 36;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  const Lock lock(state().mutex);
  state().contexts.insert(physical(current_device));
  *stream = new CUstream_st;
  state().streams.insert(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  EMULATED_NOT_WHILE_RECORDED(stream);
  const Lock lock(state().mutex);
  if (!state().streams.contains(stream)) return returned(cudaErrorInvalidResourceHandle);
  emulated::run(stream, stream->submitted);
  state().streams.erase(stream);
  state().destroyed_streams.emplace_back(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  EMULATED_NOT_WHILE_RECORDED(stream);
  const Lock lock(state().mutex);
  wait_on_host(stream, stream->submitted);
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  EMULATED_NOT_WHILE_RECORDED(stream);
  const Lock lock(state().mutex);
  if (stream->done < stream->submitted) emulated::advance(stream, stream->done + 1);
  return returned(stream->done < stream->submitted ? cudaErrorNotReady : cudaSuccess);
}
cudaError_t cudaDeviceSynchronize() {
  if (const cudaError_t code = emulated::refuse_while_anything_is_recorded(); code != cudaSuccess)
    return returned(code);
  const Lock lock(state().mutex);
  const auto streams = state().streams;
  for (CUstream_st* stream : streams) wait_on_host(stream, stream->submitted);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Lock lock(state().mutex);
  if (stream->capture != nullptr || event->capture != nullptr)
    return returned(emulated::wait_for_recorded(stream, event));
  CUstream_st* other = event->stream;
  const emulated::Ticket ticket = event->ticket;  // As of this call: it may be recorded again.
  if (other != nullptr && other != stream)
    emulated::submit_when(
        stream, [other, ticket] { return emulated::advance(other, ticket); }, nullptr);
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  emulated::submit(stream, [=] { function(data); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Lock lock(state().mutex);
  state().destroyed_events.emplace_back(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Lock lock(state().mutex);
  if (stream->capture != nullptr) {
    emulated::record_event(event, stream);
    return cudaSuccess;
  }
  event->capture.reset();
  event->stream = stream;
  event->ticket = stream->submitted + 1;
  // The clock of a stream counts its work, so that what is measured is the same in every run.
  event->seconds = 1e-6 * static_cast<double>(event->ticket);
  emulated::submit(stream, [] {});
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  EMULATED_NOT_WHILE_RECORDING;
  const Lock lock(state().mutex);
  if (event->capture != nullptr) return returned(cudaErrorCapturedEvent);
  CUstream_st* stream = event->stream;
  if (stream == nullptr || !state().streams.contains(stream)) return cudaSuccess;
  if (stream->done < event->ticket) emulated::advance(stream, stream->done + 1);  // Makes progress.
  return returned(stream->done < event->ticket ? cudaErrorNotReady : cudaSuccess);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  EMULATED_NOT_WHILE_RECORDING;
  const Lock lock(state().mutex);
  if (event->capture != nullptr) return returned(cudaErrorCapturedEvent);
  if (event->stream != nullptr) wait_on_host(event->stream, event->ticket);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  *ms = static_cast<float>((to->seconds - from->seconds) * 1e3);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  EMULATED_NOT_WHILE_RECORDING;
  const Lock lock(state().mutex);
  ++state().counters.allocations;
  if (bytes >> 48 != 0) return returned(cudaErrorInvalidValue);  // As some drivers do.
  *data = state().memory.allocate(bytes);
  return returned(*data != nullptr ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* data) {
  EMULATED_NOT_WHILE_RECORDING;
  const Lock lock(state().mutex);
  const auto streams = state().streams;  // Synchronizes the device.
  for (CUstream_st* stream : streams) wait_on_host(stream, stream->submitted);
  if (data != nullptr) state().memory.release(static_cast<std::byte*>(data));
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** data, std::size_t bytes, cudaStream_t) {
  return cudaMalloc(data, bytes);
}
cudaError_t cudaFreeAsync(void* data, cudaStream_t stream) {
  EMULATED_NOT_WHILE_RECORDED(stream);
  if (const Lock lock(state().mutex); true) ++state().counters.allocations;
  emulated::submit(stream, [data] { state().memory.release(static_cast<std::byte*>(data)); });
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* reaches, int device, int peer) {
  int count = 0;
  (void)cudaGetDeviceCount(&count);
  if (device < 0 || device >= count || peer < 0 || peer >= count)
    return returned(cudaErrorInvalidDevice);
  *reaches = device != peer ? 1 : 0;  // A device is not a peer of itself.
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc* access,
                                 std::size_t count) {
  int devices = 0;
  (void)cudaGetDeviceCount(&devices);
  for (std::size_t i = 0; i < count; ++i) {
    if (access[i].location.type != cudaMemLocationTypeDevice)
      return returned(cudaErrorInvalidValue);
    if (access[i].location.id < 0 || access[i].location.id >= devices)
      return returned(cudaErrorInvalidDevice);
  }
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned) {
  EMULATED_NOT_WHILE_RECORDING;
  const Lock lock(state().mutex);
  ++state().counters.allocations;
  *data = std::malloc(bytes == 0 ? 1 : bytes);
  if (*data == nullptr) return returned(cudaErrorMemoryAllocation);
  state().pinned[static_cast<const std::byte*>(*data)] = bytes == 0 ? 1 : bytes;
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** data, std::size_t bytes) { return cudaHostAlloc(data, bytes, 0); }
cudaError_t cudaFreeHost(void* data) {
  EMULATED_NOT_WHILE_RECORDING;
  const Lock lock(state().mutex);
  const auto streams = state().streams;
  for (CUstream_st* stream : streams) emulated::run(stream, stream->submitted);
  state().pinned.erase(static_cast<const std::byte*>(data));
  std::free(data);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  return copy({to, bytes, from, bytes, bytes, 1}, stream);
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind, cudaStream_t stream) {
  return copy({to, to_pitch, from, from_pitch, width, height}, stream);
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  emulated::submit(stream, [=] { std::memset(to, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* data) {
  std::memset(out, 0, sizeof *out);
  out->type = emulated::is_device_memory(data)   ? cudaMemoryTypeDevice
              : emulated::is_pinned_memory(data) ? cudaMemoryTypeHost
                                                 : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}

}  // extern "C"
