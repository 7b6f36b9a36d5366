/// A substitute for libcuda.so.1 without a driver, so that the engines of cuDNN that are compiled
/// at run time can be planned: NVRTC compiles, and nothing is ever executed. Functions that
/// planning needs succeed with empty results; all others report that there is no driver. Used only
/// by the test that names its folder in LD_LIBRARY_PATH; never installed.

namespace {
constexpr int kSuccess = 0;
constexpr int kStubLibrary = 34;  // CUDA_ERROR_STUB_LIBRARY
constexpr int kVersion = 13000;

int give_handle(void** handle) {
  static int something = 0;
  *handle = &something;
  return kSuccess;
}
int give(int* number, int value) {
  *number = value;
  return kSuccess;
}
int give_text(const char** text) {
  *text = "a stand-in for the driver";
  return kSuccess;
}
}  // namespace

// Callers pass more arguments than are looked at, which the C calling convention allows.
// NOLINTBEGIN
#define GIVES_HANDLE(name) \
  int name(void** handle) { return give_handle(handle); }
#define GIVES(name, value) \
  int name(int* number) { return give(number, value); }
#define DOES_NOTHING(name) \
  int name() { return kSuccess; }
#define REFUSES(name) \
  int name() { return kStubLibrary; }

extern "C" {
GIVES_HANDLE(cuLibraryLoadData)
GIVES_HANDLE(cuLibraryGetKernel)
GIVES_HANDLE(cuKernelGetFunction)
GIVES_HANDLE(cuModuleLoadData)
GIVES_HANDLE(cuModuleLoadDataEx)
GIVES_HANDLE(cuModuleGetFunction)
GIVES(cuKernelGetAttribute, 0)
GIVES(cuFuncGetAttribute, 0)
GIVES(cuOccupancyMaxActiveBlocksPerMultiprocessor, 1)
GIVES(cuOccupancyMaxActiveClusters, 66)
GIVES(cuDriverGetVersion, kVersion)
DOES_NOTHING(cuLibraryUnload)
DOES_NOTHING(cuModuleUnload)
DOES_NOTHING(cuKernelSetAttribute)
DOES_NOTHING(cuFuncSetAttribute)
int cuGetErrorString(int, const char** text) { return give_text(text); }
int cuGetErrorName(int, const char** text) { return give_text(text); }
REFUSES(cuInit)
REFUSES(cuCtxGetCurrent)
REFUSES(cuCtxGetDevice)
REFUSES(cuCtxGetLimit)
REFUSES(cuCtxPopCurrent)
REFUSES(cuCtxPushCurrent)
REFUSES(cuDeviceGet)
REFUSES(cuDeviceGetAttribute)
REFUSES(cuDeviceGetCount)
REFUSES(cuDevicePrimaryCtxRelease)
REFUSES(cuDevicePrimaryCtxReset)
REFUSES(cuDevicePrimaryCtxRetain)
REFUSES(cuGetProcAddress_v2)
REFUSES(cuLaunchCooperativeKernel)
REFUSES(cuLaunchKernel)
REFUSES(cuLaunchKernelEx)
REFUSES(cuLibraryLoadFromFile)
REFUSES(cuLinkAddData)
REFUSES(cuLinkComplete)
REFUSES(cuLinkCreate)
REFUSES(cuLinkDestroy)
REFUSES(cuMemcpyDtoH_v2)
REFUSES(cuModuleGetGlobal_v2)
REFUSES(cuModuleLoadFatBinary)
REFUSES(cuOccupancyMaxPotentialClusterSize)
REFUSES(cuStreamGetCtx)
REFUSES(cuStreamSynchronize)
}
// NOLINTEND
