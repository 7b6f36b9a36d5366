#pragma once

#include "dkfac/core/device.h"
#include "dkfac/core/types.h"
#include "dkfac/kfac/statistics.h"

/// How the operand of a product is stored.
namespace dkfac::kfac {

[[nodiscard]] constexpr bool is_half(DType type) {
  return type == DType::f16 || type == DType::bf16;
}

/// Whether `type` represents every value of `given` exactly.
[[nodiscard]] constexpr bool holds(DType type, DType given) {
  return type == given || type == DType::f64 || (type == DType::f32 && is_half(given));
}

struct OperandForm {
  DType type = DType::f32;  ///< Type of the elements.
  double scale = 1;         ///< Factor of the elements.
  bool rounds = false;  ///< Whether they are rounded beyond the conversion to the computing type.
};

/// Returns the form for data of type `given` in a product computed in `compute`, f32 or f64. On the
/// host, elements are stored in the computing type and hold rounded values. A device reads 16-bit
/// operands directly where sums are f32. Data that already has operand.type is then read in place,
/// without rounding or scale.
[[nodiscard]] inline OperandForm operand_form(Device device, DType given, DType compute,
                                              Operand operand) {
  const DType type = operand.type;
  if (!device.is_cuda()) {
    // Rounding beyond the conversion to the computing type.
    bool rounds = type != DType::f64 && type != given;
    if (type == DType::f32) rounds = given == DType::f64 && compute == DType::f64;
    return {compute, operand.scale, operand.scale != 1 || rounds};
  }
  const bool rounds = !holds(type, given) && !(type == DType::f32 && compute == DType::f32);
  const DType value = rounds ? type : given;
  return {compute == DType::f32 && is_half(value) ? value : compute, rounds ? operand.scale : 1,
          rounds};
}

}  // namespace dkfac::kfac
