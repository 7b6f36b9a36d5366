#pragma once

#include "dkfac/core/types.h"

/// Scaling of sums that are communicated in a narrower type than they are computed in.
namespace dkfac::comm {

/// Exponent of a magnitude that is unknown or zero.
inline constexpr int kNoExponent = -2000;
/// Returns the least e with |x| < 2^e; kNoExponent for 0 and for x that is not finite.
[[nodiscard]] int exponent_of(double x);

/// Headroom of an f16 wire, as a power of two: tolerated growth of a magnitude between two steps.
inline constexpr int kWireHeadroom = 4;

/// Power of two by which parts below 2^exponent are scaled before they are rounded to `wire`. With
/// f16 the sum over `ranks` still fits if parts are 2^kWireHeadroom times as large. 1 for the other
/// types, which have the range of f32.
[[nodiscard]] double wire_scale(DType wire, int exponent, int ranks);
/// Largest magnitude of a scaled part for which no sum over `ranks` overflows.
[[nodiscard]] double wire_limit(DType wire, int ranks);

}  // namespace dkfac::comm
