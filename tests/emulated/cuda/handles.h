#pragma once

struct CUstream_st;

namespace emulated {

/// Waits as destroying a handle does. Libraries synchronize the device there; this waits only for
/// the handle's stream, if it still exists.
void wait_for_handle(CUstream_st* stream);

}  // namespace emulated

struct cublasContext {
  CUstream_st* stream = nullptr;
  bool device_scalars = false;  ///< alpha and beta are device memory (CUBLAS_POINTER_MODE_DEVICE).
};
struct cusolverDnContext {
  CUstream_st* stream = nullptr;
};
struct cusolverDnParams {};
