#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <cusolverDn.h>

#include "dkfac/core/error.h"

#include "core/shared/cuda/handles.h"

namespace dkfac::cuda {
namespace {

constexpr const char* kLessMemory =
    "use a smaller batch or model, leave wide layers without curvature, or end what else runs on "
    "the "
    "device";
constexpr const char* kReport = "please report this with what was running";

const char* advice_for(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return kLessMemory;
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
      return "it may be of earlier work, and this process cannot use the device any more: start it "
             "again from its last checkpoint, and run it under compute-sanitizer if that happens "
             "twice";
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
      return "build with CMAKE_CUDA_ARCHITECTURES of this device";
    case cudaErrorInsufficientDriver:
      return "install a newer driver, or build with an older CUDA";
    case cudaErrorDevicesUnavailable:
      return "another process has the device for itself; wait for it or take another device";
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureUnjoined:
    case cudaErrorStreamCaptureIsolation:
      return "this work cannot be captured (core/shared/captured.h); run it as it is";
    default:
      return kReport;
  }
}

/// Returns the current device of the calling thread, on which library calls are made.
Device current_device() {
  int index = 0;
  if (cudaGetDevice(&index) != cudaSuccess) (void)cudaGetLastError();
  return Device::cuda(index);
}

[[noreturn]] void fail(const char* call, int code, const char* text, const char* advice) {
  throw DeviceError(dkfac::detail::concat("[", call, "] failed on ", current_device(),
                                          " with code ", code, " (", text, "); ", advice));
}

}  // namespace

void check_runtime(int code, const char* call) {
  if (code == cudaSuccess) return;
  const auto error = static_cast<cudaError_t>(code);
  (void)cudaGetLastError();  // Reported here: clear it, so that the next launch does not see it.
  throw DeviceError(dkfac::detail::concat("[", call, "] failed on ", current_device(), " with ",
                                          cudaGetErrorName(error), " (", cudaGetErrorString(error),
                                          "); ", advice_for(error)));
}

void check_blas(int code, const char* call) {
  if (code == CUBLAS_STATUS_SUCCESS) return;
  // cuBLAS may leave an error of the runtime as well.
  (void)cudaGetLastError();
  fail(call, code, cublasGetStatusString(static_cast<cublasStatus_t>(code)),
       code == CUBLAS_STATUS_ALLOC_FAILED || code == CUBLAS_STATUS_NOT_INITIALIZED ? kLessMemory
                                                                                   : kReport);
}

void check_solver(int code, const char* call) {
  if (code == CUSOLVER_STATUS_SUCCESS) return;
  (void)cudaGetLastError();
  fail(call, code, "a status of cuSOLVER; see cusolverStatus_t",
       code == CUSOLVER_STATUS_ALLOC_FAILED ? kLessMemory : kReport);
}

void before_launch() noexcept { (void)cudaGetLastError(); }

void check_launch(const char* kernel) { check_runtime(cudaGetLastError(), kernel); }

}  // namespace dkfac::cuda
