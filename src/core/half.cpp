#include "dkfac/core/half.h"

#include "core/shared/half_bits.h"

namespace dkfac {

float to_float(f16 x) noexcept { return detail::widen(x); }
float to_float(bf16 x) noexcept { return detail::widen(x); }
f16 to_f16(float x) noexcept { return detail::narrow<f16>(x); }
bf16 to_bf16(float x) noexcept { return detail::narrow<bf16>(x); }
f16 to_f16(double x) noexcept { return detail::narrow<f16>(x); }
bf16 to_bf16(double x) noexcept { return detail::narrow<bf16>(x); }

}  // namespace dkfac
