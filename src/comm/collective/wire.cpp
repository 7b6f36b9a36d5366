#include "comm/collective/wire.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace dkfac::comm {
namespace {

// Half of the largest power of two of each type: rounding of parts and sums stays within the other.
constexpr int kF16Exponent = 15, kF32Exponent = 127;

/// Returns the least e with ranks <= 2^e.
int doublings(int ranks) {
  return static_cast<int>(std::bit_width(static_cast<unsigned>(ranks) - 1U));
}

}  // namespace

int exponent_of(double x) {
  if (!(std::abs(x) > 0) || !std::isfinite(x)) return kNoExponent;
  int exponent = 0;
  (void)std::frexp(x, &exponent);
  return exponent;
}

double wire_scale(DType wire, int exponent, int ranks) {
  if (wire != DType::f16) return 1;
  const int shift = kF16Exponent - doublings(ranks) - kWireHeadroom - exponent;
  // Clamped so that both the scale and its inverse are normal in f32.
  return std::ldexp(1.0, std::clamp(shift, -120, 120));
}

double wire_limit(DType wire, int ranks) {
  const int exponent = wire == DType::f16 ? kF16Exponent : kF32Exponent;
  return std::ldexp(1.0, exponent - doublings(ranks));
}

}  // namespace dkfac::comm
