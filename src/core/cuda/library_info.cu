#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <cusolverDn.h>

#include "dkfac/core/error.h"

#include "core/cuda/library_info.h"
#include "core/cuda/runtime.h"
#include "core/shared/cuda/handles.h"

namespace dkfac::cuda {
namespace {

/// Formats a version number, 13020 as "13.2".
std::string cuda_version(int number) {
  return number == 0 ? std::string()
                     : dkfac::detail::concat(number / 1000, ".", number % 1000 / 10);
}

template <class Get>
std::string library_version(Get&& get) {
  int parts[3] = {0, 0, 0};
  get(MAJOR_VERSION, &parts[0]);
  get(MINOR_VERSION, &parts[1]);
  get(PATCH_LEVEL, &parts[2]);
  return dkfac::detail::concat(parts[0], ".", parts[1], ".", parts[2]);
}

CudaDevice describe(int index) {
  cudaDeviceProp props{};
  check_runtime(cudaGetDeviceProperties(&props, index), "cudaGetDeviceProperties");
  return {props.name, dkfac::detail::concat(props.major, ".", props.minor),
          static_cast<std::int64_t>(props.totalGlobalMem), props.multiProcessorCount};
}

}  // namespace

CudaInfo library_info() {
  CudaInfo info;
  int runtime = 0, driver = 0;
  if (cudaRuntimeGetVersion(&runtime) == cudaSuccess) info.runtime = cuda_version(runtime);
  if (cudaDriverGetVersion(&driver) == cudaSuccess) info.driver = cuda_version(driver);
  (void)cudaGetLastError();  // An unknown version must not leave an error behind.
  info.cublas = library_version([](libraryPropertyType type, int* value) {
    check_blas(cublasGetProperty(type, value), "cublasGetProperty");
  });
  info.cusolver = library_version([](libraryPropertyType type, int* value) {
    check_solver(cusolverGetProperty(type, value), "cusolverGetProperty");
  });
  for (int i = 0; i < device_count(); ++i) info.devices.push_back(describe(i));
  return info;
}

}  // namespace dkfac::cuda
