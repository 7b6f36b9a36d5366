#pragma once

#include <utility>

#include "dkfac/core/context.h"

#include "device_kernel.h"

/// Lists of kernels: loops that exist for the host and for a device under one signature.
///
///     namespace dkfac::nn {
///     /// y = x + z.
///     DKFAC_KERNEL(void, add, ConstTensorView x, ConstTensorView z, TensorView y);
///     }
///
/// declares cpu::add and cuda::add of a Context& and these parameters, to be defined in a source of
/// the host and one of the device, else the link fails; and kernels::add, which calls the one of
/// the context's device. Default arguments are not possible. DKFAC_DEVICE_KERNEL(void, add, ...),
/// in namespace cuda, is for what the device alone has.
///
/// Where CMake finds no CUDA, device_kernel.h is another one, and what is in namespace cuda throws
/// DeviceError.
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

/// Calls `host` or `device`, by the device of the context.
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
