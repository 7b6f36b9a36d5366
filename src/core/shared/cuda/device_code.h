#pragma once

/// Marks what runs on the device and on the host alike. Index and number code of kernels is written
/// as functors with it, in headers that any C++ compiler takes, so that it is tested without a GPU.
#ifdef __CUDACC__
#define DKFAC_HD __host__ __device__
#else
#define DKFAC_HD
#endif
