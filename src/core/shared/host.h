#pragma once

#include <string_view>

#include "dkfac/core/device.h"
#include "dkfac/core/error.h"
#include "dkfac/core/tensor_view.h"

/// Helpers of loops outside ops that exist for host memory only.
namespace dkfac {

inline void require_host(std::string_view operation, Device device) {
  if (!device.is_cuda()) return;
  throw DeviceError(detail::concat("[", operation, "] has no kernel for ", device,
                                   "; keep its tensors on the cpu"));
}

/// Calls body(T{}) with the computing type of `dtype`.
template <class Body>
void with_real(std::string_view operation, DType dtype, Body&& body) {
  DKFAC_CHECK(dtype == DType::f32 || dtype == DType::f64, "[", operation, "] got a ", dtype,
              " tensor; it must be f32 or f64");
  if (dtype == DType::f32) {
    body(float{});
  } else {
    body(double{});
  }
}

}  // namespace dkfac
