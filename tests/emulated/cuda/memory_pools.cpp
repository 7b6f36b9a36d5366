#include <mutex>

#include <cuda_runtime_api.h>

#include "state.h"

// Memory pools: all share one memory, and used memory equals reserved memory.
namespace {

using emulated::Memory;
using emulated::state;
using Lock = std::scoped_lock<emulated::DeviceMutex>;

}  // namespace

extern "C" {

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps*) {
  *pool = reinterpret_cast<cudaMemPool_t>(new char);
  return cudaSuccess;
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  delete reinterpret_cast<char*>(pool);
  return cudaSuccess;
}

cudaError_t cudaMallocFromPoolAsync(void** data, std::size_t bytes, cudaMemPool_t,
                                    cudaStream_t stream) {
  return cudaMallocAsync(data, bytes, stream);
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr attribute, void*) {
  const Lock lock(state().mutex);
  if (attribute == cudaMemPoolAttrUsedMemHigh) state().memory.reset_peak();
  return cudaSuccess;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr attribute, void* value) {
  const Lock lock(state().mutex);
  const Memory& memory = state().memory;
  const bool peak =
      attribute == cudaMemPoolAttrUsedMemHigh || attribute == cudaMemPoolAttrReservedMemHigh;
  *static_cast<unsigned long long*>(value) =
      static_cast<unsigned long long>(peak ? memory.peak_bytes() : memory.live_bytes());
  return cudaSuccess;
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, std::size_t) {
  const Lock lock(state().mutex);
  if (state().trims_to_memory > 0) --state().trims_to_memory;
  return cudaSuccess;
}

}  // extern "C"
