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

/// log(x) for 0 < x <= 2. Of a subnormal x in f32 it is only of the right size.
[[nodiscard]] DKFAC_HD inline float log_small(float x) {
  constexpr std::uint32_t kRootHalf = 0x3F3504F3U;
  const std::uint32_t from_root = std::bit_cast<std::uint32_t>(x) - kRootHalf;
  const auto n = static_cast<float>(static_cast<std::int32_t>(from_root) >> 23);
  const float f = std::bit_cast<float>((from_root & 0x007FFFFFU) + kRootHalf) - 1.0F;
  // log(1 + f), sqrt(1/2) <= 1 + f < sqrt(2) (Moshier's Cephes).
  float p = 7.0376836292e-2F;
  p = p * f - 1.1514610310e-1F;
  p = p * f + 1.1676998740e-1F;
  p = p * f - 1.2420140846e-1F;
  p = p * f + 1.4249322787e-1F;
  p = p * f - 1.6668057665e-1F;
  p = p * f + 2.0000714765e-1F;
  p = p * f - 2.4999993993e-1F;
  p = p * f + 3.3333331174e-1F;
  const float square = f * f;
  return n * 0.693359375F + (f + (p * f * square - 0.5F * square + n * -2.12194440e-4F));
}
[[nodiscard]] DKFAC_HD inline double log_small(double x) { return std::log(x); }

/// log(1 + e) for 0 <= e <= 1; inverse: 1 / (1 + e).
[[nodiscard]] DKFAC_HD inline float log1p_small(float e, float inverse) {
  const float sum = 1.0F + e;
  return log_small(sum) + (e - (sum - 1.0F)) * inverse;
}
[[nodiscard]] DKFAC_HD inline double log1p_small(double e, double) { return std::log1p(e); }

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
