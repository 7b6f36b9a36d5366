#pragma once

#include <cstddef>
#include <cstring>
#include <stdexcept>

#include <cusolverDn.h>

#include "column_major.h"
#include "handles.h"

/// Shared parts of the calls of cuSOLVER.
namespace emulated {

inline bool known_fill(cublasFillMode_t uplo) {
  return uplo == CUBLAS_FILL_MODE_LOWER || uplo == CUBLAS_FILL_MODE_UPPER;
}

inline bool real_type(cudaDataType type) { return type == CUDA_R_32F || type == CUDA_R_64F; }

/// Sizes that are not 0, so that a caller without a workspace is detected.
inline constexpr std::size_t kHostWorkspace = 96;
inline std::size_t device_workspace(std::int64_t n) { return static_cast<std::size_t>(64 + 8 * n); }

inline cusolverStatus_t workspace_sizes(std::int64_t n, std::size_t* device, std::size_t* host) {
  if (device == nullptr || host == nullptr) return CUSOLVER_STATUS_INVALID_VALUE;
  *device = device_workspace(n);
  *host = kHostWorkspace;
  return CUSOLVER_STATUS_SUCCESS;
}

/// Rejects a workspace that is too small. Otherwise the one on the host is written now; the one on
/// the device is for the work.
inline bool enough_workspace(std::int64_t n, const void* device, std::size_t device_bytes,
                             void* host, std::size_t host_bytes, const char* call) {
  if (device_bytes < device_workspace(n) || host_bytes < kHostWorkspace) return false;
  require_device(device, call);
  if (is_device_memory(host)) throw std::runtime_error("emulated device: host workspace on device");
  std::memset(host, 0xff, kHostWorkspace);
  return true;
}

/// Requires a status in device or pinned memory.
inline void require_status(const int* info, const char* call) {
  if (!is_pinned_memory(info)) require_device(info, call);
}

}  // namespace emulated
