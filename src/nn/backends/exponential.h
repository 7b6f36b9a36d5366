#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "core/shared/cuda/device_code.h"

/// Exponentials of numbers that are not positive, for use inside vectorised loops and kernels. In
/// f32 they have neither branch nor call, and the same bits on host and device; in f64 they are the
/// library's.
namespace dkfac::nn {

/// exp(x) = power * (1 + small): x = n ln 2 + r, power = 2^n, small = exp(r) - 1.
struct SplitExponential {
  float power, small;
};

/// Splits exp(x + rest), -87 <= x <= 0, |rest| < 0.06, to a few units in the last place.
[[nodiscard]] DKFAC_HD inline SplitExponential split_exponential(float x, float rest = 0) {
  constexpr float kRounder = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer.
  constexpr float kLn2High = 0.693145752F, kLn2Low = 1.42860677e-6F;
  const float shifted = x * 1.44269504F + kRounder;
  const float n = shifted - kRounder;
  const float r = ((x - n * kLn2High) - n * kLn2Low) + rest;
  const float tail = 1.0F / 6 + r * (1.0F / 24 + r * (1.0F / 120 + r * (1.0F / 720 + r / 5040)));
  const auto exponent = std::bit_cast<std::uint32_t>(shifted) << 23U;
  return {std::bit_cast<float>(exponent + 0x3F800000U), r + r * r * (0.5F + r * tail)};
}

/// exp(x) - 1 for x <= 0.
[[nodiscard]] DKFAC_HD inline float expm1_negative(float x) {
  constexpr float kLowest = -20.0F;  // exp(x) is below half a unit in the last place of 1.
  const auto [power, small] = split_exponential(x < kLowest ? kLowest : x);
  return power * small + (power - 1.0F);
}
[[nodiscard]] DKFAC_HD inline double expm1_negative(double x) { return std::expm1(x); }

/// The least x of exp_negative(), whose result is a normal number; below it, the result stays.
template <class T>
inline constexpr T kLowestExponent = T{-700};
template <>
inline constexpr float kLowestExponent<float> = -87.0F;

/// exp(x) for x <= 0. NaN stays NaN.
[[nodiscard]] DKFAC_HD inline float exp_negative(float x, float rest = 0) {
  constexpr float kLowest = kLowestExponent<float>;
  const auto [power, small] = split_exponential(x < kLowest ? kLowest : x, rest);
  return power * small + power;
}
[[nodiscard]] DKFAC_HD inline double exp_negative(double x) {
  constexpr double kLowest = kLowestExponent<double>;
  return std::exp(x < kLowest ? kLowest : x);
}

/// Density of the normal distribution at u, and the probability of more than u; 0 <= u <= 13 in
/// f32.
template <class T>
struct NormalTail {
  T density, above;
};
[[nodiscard]] DKFAC_HD inline NormalTail<double> normal_tail(double u) {
  return {std::exp(-0.5 * u * u) * 0.398942280401432678, 0.5 * std::erfc(u * 0.707106781186547524)};
}
[[nodiscard]] DKFAC_HD inline NormalTail<float> normal_tail(float u) {
  // u^2 in two parts: its rounding error would be a relative error of the exponential.
  const float high = std::bit_cast<float>(std::bit_cast<std::uint32_t>(u) & 0xFFFFF000U);
  const float e = exp_negative(-0.5F * high * high, -0.5F * (u + high) * (u - high));
  // above / e, a polynomial in t without its constant term (Chebyshev, relative error 1.2e-8).
  const float t = 1.0F / (1.0F + 0.25F * u);
  float p = 0.0147856649F;
  p = p * t - 0.05294319546F;
  p = p * t + 0.02820080652F;
  p = p * t + 0.06016993149F;
  p = p * t - 0.0141365773F;
  p = p * t + 0.1013610136F;
  p = p * t + 0.0667940693F;
  p = p * t + 0.09666289423F;
  p = p * t + 0.09934986157F;
  p = p * t + 0.09975553326F;
  return {0.398942280F * e, p * t * e};
}

}  // namespace dkfac::nn
