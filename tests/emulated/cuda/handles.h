#pragma once

struct CUstream_st;

namespace emulated {

/// What destroying a handle does: libraries wait for the device there. Here for its stream alone,
/// if that is still there.
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
