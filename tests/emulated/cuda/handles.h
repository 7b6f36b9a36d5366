#pragma once

struct CUstream_st;

struct cublasContext {
  CUstream_st* stream = nullptr;
  bool device_scalars = false;  ///< alpha and beta are device memory (CUBLAS_POINTER_MODE_DEVICE).
};
struct cusolverDnContext {
  CUstream_st* stream = nullptr;
};
struct cusolverDnParams {};
