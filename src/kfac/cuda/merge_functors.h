#pragma once

#include <cstdint>
#include <limits>

#include "dkfac/core/cuda/device_code.h"

#include "kfac/merge_rule.h"

/// Averages that refuse what is not finite without asking the host.
namespace dkfac::kfac::cuda {

/// Summands whose sum is finite if and only if the statistic may be merged. f64, which holds sums
/// of f32 elements and of their squares.
template <class T>
struct FiniteTerm {
  const T* statistic;
  FiniteTest test;
  std::int64_t dim;  ///< traces: term k is that of element k % dim of the diagonal k / dim.

  DKFAC_HD double operator()(std::int64_t, std::int64_t k) const {
    if (test == FiniteTest::traces) {
      const std::int64_t group = k / dim, i = k % dim;
      return static_cast<double>(statistic[group * (dim * (dim + 1) / 2) + i * (i + 3) / 2]);
    }
    const auto x = static_cast<double>(statistic[k]);
    return test == FiniteTest::squares ? x * x : x - x;  // NaN of what is not finite
  }
};

/// refused[0] = 0 or 1, which is added to count[0].
struct StoreVerdict {
  std::int32_t* refused;
  std::int32_t* count;

  DKFAC_HD void operator()(std::int64_t, double sum) const {
    constexpr double kLargest = std::numeric_limits<double>::max();
    const bool finite = sum >= -kLargest && sum <= kLargest;  // false for a NaN
    *refused = finite ? 0 : 1;
    *count += *refused;
  }
};

/// average[i] <- weight * statistic[i] + (1 - weight) * average[i], unless it is refused; a weight
/// of 1 does not read it.
template <class T>
struct MergeElement {
  const T* statistic;
  T* average;
  const std::int32_t* refused;
  T weight, rest;

  DKFAC_HD void operator()(std::int64_t i) const {
    if (*refused != 0) return;
    const T old = rest == 0 ? T{0} : rest * average[i];
    average[i] = weight * statistic[i] + old;
  }
};

}  // namespace dkfac::kfac::cuda
