#pragma once

#include <cstdint>
#include <type_traits>

#include "core/shared/cuda/device_code.h"
#include "core/shared/element.h"

/// element::load() and store() between 16-bit types and f32 by conversion instructions of the
/// device. Memory-bound kernels can afford some twenty operations per element, which the integer
/// arithmetic of the host would use up. The bits are the same, except for NaNs.
namespace dkfac::cuda {

template <class C, class T>
[[nodiscard]] DKFAC_HD inline C widened(T x) noexcept {
#ifdef __CUDA_ARCH__
  if constexpr (std::is_same_v<T, f16>) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
    return static_cast<C>(wide);
  }
#endif
  return element::load<C>(x);
}

/// Converts with one rounding, to nearest even.
template <class T, class C>
[[nodiscard]] DKFAC_HD inline T rounded(C x) noexcept {
#ifdef __CUDA_ARCH__
  if constexpr (std::is_same_v<T, f16> && std::is_same_v<C, float>) {
    T narrow;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x));
    return narrow;
  }
#if __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, bf16> && std::is_same_v<C, float>) {
    T narrow;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x));
    return narrow;
  }
#endif
#endif
  return element::store<T>(x);
}

}  // namespace dkfac::cuda
