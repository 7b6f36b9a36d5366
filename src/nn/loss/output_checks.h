#pragma once

#include <cmath>

#include "dkfac/core/error.h"
#include "dkfac/core/tensor_view.h"

#include "core/shared/keyed_random.h"

/// Checks of the losses whose outputs each have a target.
namespace dkfac::nn {

inline void check_outputs(const char* operation, Device device, ConstTensorView outputs) {
  DKFAC_CHECK(outputs.ndim() == 2 && outputs.is_contiguous() && outputs.device() == device, "[",
              operation, "] outputs are ", outputs.shape(), " on ", outputs.device(),
              "; they must be [n, outputs] without gaps, on ", device);
  DKFAC_CHECK(outputs.dtype() == DType::f64 || outputs.dtype() == DType::f32, "[", operation,
              "] outputs are ", outputs.dtype(), "; they must be f64 or f32");
}

/// Checks that `other` has the shape, dtype and device of the outputs.
inline void check_like(const char* operation, const char* what, ConstTensorView outputs,
                       ConstTensorView other) {
  DKFAC_CHECK(other.shape() == outputs.shape() && other.dtype() == outputs.dtype() &&
                  other.is_contiguous() && other.device() == outputs.device(),
              "[", operation, "] ", what, " are ", other.dtype(), " ", other.shape(), " on ",
              other.device(), "; they must be as the outputs, ", outputs.dtype(), " ",
              outputs.shape(), " without gaps, on ", outputs.device());
}

/// Checks the arguments of a loss; its gradient may be empty.
inline void check_loss(const char* operation, Device device, ConstTensorView outputs,
                       ConstTensorView targets, double scale, ConstTensorView grad) {
  check_outputs(operation, device, outputs);
  check_like(operation, "targets", outputs, targets);
  if (!grad.empty()) check_like(operation, "grad", outputs, grad);
  DKFAC_CHECK(std::isfinite(scale), "[", operation, "] scale is ", scale, "; it must be finite");
}

/// Checks the tensor f64 [count] to which sums are added.
inline void check_sums(const char* operation, const char* what, Device device, std::int64_t count,
                       ConstTensorView sums) {
  DKFAC_CHECK(sums.shape() == Shape{count} && sums.dtype() == DType::f64 && sums.is_contiguous() &&
                  sums.device() == device,
              "[", operation, "] ", what, sums.dtype(), " ", sums.shape(), " on ", sums.device(),
              "; it must be f64 [", count, "] on ", device);
}

/// Checks the arguments of a function that draws targets.
inline void check_draw(const char* operation, Device device, ConstTensorView outputs, SampleKey key,
                       ConstTensorView targets) {
  check_outputs(operation, device, outputs);
  check_like(operation, "targets", outputs, targets);
  check_key(operation, key);
}

}  // namespace dkfac::nn
