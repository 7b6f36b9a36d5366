#pragma once

/// Marks functions for device and host. Index and arithmetic code of kernels is written as functors
/// with it, in headers that any C++ compiler accepts, so that it is tested without a GPU.
#ifdef __CUDACC__
#define DKFAC_HD __host__ __device__
#else
#define DKFAC_HD
#endif
