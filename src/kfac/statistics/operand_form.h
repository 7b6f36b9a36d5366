#pragma once

#include "dkfac/core/device.h"
#include "dkfac/core/types.h"
#include "dkfac/kfac/statistics.h"

/// How the operand of a product lies in memory.
namespace dkfac::kfac {

[[nodiscard]] constexpr bool is_half(DType type) {
  return type == DType::f16 || type == DType::bf16;
}

/// Whether every value of `given` is one of `type`.
[[nodiscard]] constexpr bool holds(DType type, DType given) {
  return type == given || type == DType::f64 || (type == DType::f32 && is_half(given));
}

struct OperandForm {
  DType type = DType::f32;  ///< Of the elements.
  double scale = 1;         ///< They are multiplied by this.
  bool rounds = false;      ///< They are rounded beyond the conversion to the computing type.
};

/// For data `given` in a product in `compute`, f32 or f64. Products on the host are of elements in
/// the computing type that hold rounded values. Those on a device take operands of 16 bits as they
/// are where sums are f32, so that data which is of operand.type already is read in place: it needs
/// no rounding, hence no scale either.
[[nodiscard]] inline OperandForm operand_form(Device device, DType given, DType compute,
                                              Operand operand) {
  const DType type = operand.type;
  if (!device.is_cuda()) {
    // Rounding that the conversion to the computing type has not done already.
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
