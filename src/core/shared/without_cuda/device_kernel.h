#pragma once

#include "dkfac/core/context.h"
#include "dkfac/core/error.h"

namespace dkfac {

/// A kernel of a device that this build has no code for.
template <class Signature>
struct AbsentKernel;

template <class Result, class... Args>
struct AbsentKernel<Result(Args...)> {
  const char* name;
  [[noreturn]] Result operator()(Args... /*args*/) const {
    throw DeviceError(detail::concat(
        "[", name, "] this build has no CUDA; keep tensors on the cpu (Device::cpu())"));
  }
};

}  // namespace dkfac

#define DKFAC_DEVICE_KERNEL(Result, name, ...) \
  inline constexpr AbsentKernel<Result(Context& ctx, __VA_ARGS__)> name = {#name}
