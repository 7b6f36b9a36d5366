#pragma once

#include <utility>

#include "dkfac/core/context.h"

#include "device_kernel.h"

/// Declares a kernel: a loop that exists for the host and for a device with one signature.
///
///     namespace dkfac::nn {
///     /// y = x + z.
///     DKFAC_KERNEL(void, add, ConstTensorView x, ConstTensorView z, TensorView y);
///     }
///
/// declares cpu::add and cuda::add with a Context& before these parameters, and kernels::add, which
/// calls the one for the context's device. Both must be defined, one in a file of the host and
/// one of the device, or linking fails. Default arguments are not possible. A kernel of the device
/// alone is declared with DKFAC_DEVICE_KERNEL(void, add, ...) in namespace cuda.
///
/// Without CUDA, CMake selects another device_kernel.h, in which the functions of namespace cuda
/// throw DeviceError.
#define DKFAC_KERNEL(Result, name, ...)                                                          \
  namespace cpu {                                                                                \
  Result name(Context& ctx, __VA_ARGS__);                                                        \
  }                                                                                              \
  namespace cuda {                                                                               \
  DKFAC_DEVICE_KERNEL(Result, name, __VA_ARGS__);                                                \
  }                                                                                              \
  namespace kernels {                                                                            \
  inline constexpr OnDeviceOf<Result(Context& ctx, __VA_ARGS__), &cpu::name, &cuda::name> name = \
      {};                                                                                        \
  }

namespace dkfac {

/// Calls `host` or `device`, depending on the device of the context.
template <class Signature, auto host, auto device>
struct OnDeviceOf;

template <class Result, class... Args, auto host, auto device>
struct OnDeviceOf<Result(Context&, Args...), host, device> {
  Result operator()(Context& ctx, Args... args) const {
    return ctx.device().is_cuda() ? (*device)(ctx, std::forward<Args>(args)...)
                                  : (*host)(ctx, std::forward<Args>(args)...);
  }
};

}  // namespace dkfac
