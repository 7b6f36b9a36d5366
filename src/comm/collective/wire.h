#pragma once

#include "dkfac/core/types.h"

/// Sums that travel in a narrower type than they are computed in.
namespace dkfac::comm {

/// Exponent of a magnitude that is unknown or zero.
inline constexpr int kNoExponent = -2000;
/// The least e with |x| < 2^e; kNoExponent for 0 and what is not finite.
[[nodiscard]] int exponent_of(double x);

/// Growth of a magnitude from one step to the next that an f16 wire survives, as a power of two.
inline constexpr int kWireHeadroom = 4;

/// Power of two by which parts below 2^exponent are multiplied before they are rounded to `wire`:
/// with f16 the sum over `ranks` of parts 2^kWireHeadroom times as large still fits. 1 for the
/// other types, which have the range of f32.
[[nodiscard]] double wire_scale(DType wire, int exponent, int ranks);
/// Largest magnitude of a scaled part for which no sum over `ranks` overflows.
[[nodiscard]] double wire_limit(DType wire, int ranks);

}  // namespace dkfac::comm
