#pragma once

#include <ostream>
#include <string_view>

#include "dkfac/core/device.h"
#include "dkfac/core/error.h"
#include "dkfac/core/tensor_view.h"

/// Argument checks. `what` is the argument.
namespace dkfac {

/// Names for error messages: the operation that checks, and its layer if it has one.
struct Caller {
  std::string_view operation, layer;
  Caller(std::string_view op, std::string_view in = {})  // NOLINT(google-explicit-constructor)
      : operation(op), layer(in) {}
  Caller(const char* op) : operation(op) {}  // NOLINT(google-explicit-constructor)
};
/// Prints the beginning of a message: "[compute A] ", "[record_input] layer 'fc': ".
inline std::ostream& operator<<(std::ostream& out, const Caller& caller) {
  out << '[' << caller.operation << "] ";
  return caller.layer.empty() ? out : out << "layer '" << caller.layer << "': ";
}

/// Requires a non-null pointer unless the view has no elements.
inline void check_memory(const Caller& caller, std::string_view what, ConstTensorView x) {
  DKFAC_CHECK(x.raw() != nullptr || x.numel() == 0, caller, what, ' ', x.shape(),
              " is a null pointer; pass the memory that holds it");
}

inline void check_shape(const Caller& caller, std::string_view what, ConstTensorView x,
                        const Shape& shape) {
  DKFAC_CHECK(x.shape() == shape, caller, what, " has shape ", x.shape(), "; it must be ", shape);
  check_memory(caller, what, x);
}

inline void check_contiguous(const Caller& caller, std::string_view what, ConstTensorView x) {
  DKFAC_CHECK(x.is_contiguous(), caller, what, ' ', x.shape(),
              " has gaps between its elements; it must be contiguous, so copy it first");
}

inline void check_floating(const Caller& caller, std::string_view what, ConstTensorView x) {
  DKFAC_CHECK(x.dtype() != DType::i32, caller, what, " is ", x.dtype(),
              "; it must be f64, f32, bf16 or f16");
}

inline void check_device(const Caller& caller, std::string_view what, ConstTensorView x,
                         Device device) {
  check_memory(caller, what, x);
  DKFAC_CHECK(x.device() == device, caller, what, " is on ", x.device(), " and the context on ",
              device, "; copy it there first");
}

}  // namespace dkfac
