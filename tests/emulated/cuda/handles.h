#pragma once

struct CUstream_st;

struct cublasContext {
  CUstream_st* stream = nullptr;
};
struct cusolverDnContext {
  CUstream_st* stream = nullptr;
};
