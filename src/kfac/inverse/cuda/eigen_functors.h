#pragma once

#include <cmath>
#include <cstdint>

#include "core/shared/cuda/device_code.h"
#include "kfac/inverse/cuda/blocks.h"
#include "kfac/inverse/cuda/probe_functors.h"

/// The check of eigenvectors (residual.h) on the device, for one matrix at a time.
namespace dkfac::kfac::cuda {

/// to[i] = w[i] * value.
template <class T>
struct Weigh {
  const T* w;
  Two* to;
  DKFAC_HD void operator()(std::int64_t i, Two value) const {
    to[i] = static_cast<double>(w[i]) * value;
  }
};

/// Squared norms of M z - Q W Q' z and of M z, the trace of M, and the number of elements of Q'Q z
/// that differ from z.
struct EigenErrors {
  Two difference, expected;
  double trace, misses;
};
DKFAC_HD inline EigenErrors operator+(const EigenErrors& x, const EigenErrors& y) {
  return {x.difference + y.difference, x.expected + y.expected, x.trace + y.trace,
          x.misses + y.misses};
}

template <class T>
struct EigenError {
  const Block<T>* block;
  const Two *product, *expected, *returned;
  Vectors signs;
  DKFAC_HD EigenErrors operator()(std::int64_t, std::int64_t i) const {
    const Two z = signs(i), off = returned[i] - z;
    // Also counts a NaN.
    const bool close = std::fabs(off.a) <= kResidualBar && std::fabs(off.b) <= kResidualBar;
    return {square(product[i] - expected[i]), square(expected[i]),
            static_cast<double>(block->average[i * (i + 3) / 2]), close ? 0.0 : 1.0};
  }
};

/// Whether an eigenvalue is below 0 by more than rounding: less than -16 d eps times the largest. w
/// is ascending.
template <class T>
DKFAC_HD bool is_clipped(const T* w, std::int64_t d, T eps) {
  const T low = std::fabs(w[0]), high = std::fabs(w[d - 1]);
  return w[0] < -(T{16} * static_cast<T>(d) * eps * (low > high ? low : high));
}

/// Writes the stage, and a damping of 1 where the eigenvectors pass.
template <class T>
struct CheckDecomposition {
  const Block<T>* block;
  const std::int32_t *nonfinite, *info;
  const T* w;
  std::int64_t d;
  T eps;
  std::int32_t good, clipped, bad;
  DKFAC_HD void operator()(std::int64_t, const EigenErrors& e) const {
    const double rounding =
        kEigenRounding * static_cast<double>(d) * static_cast<double>(eps) * e.trace;
    const bool ok =
        *nonfinite == 0 && *info == 0 && e.misses == 0 &&
        std::sqrt(e.difference.a) <= kResidualBar * std::sqrt(e.expected.a) + rounding &&
        std::sqrt(e.difference.b) <= kResidualBar * std::sqrt(e.expected.b) + rounding;
    *block->stage = !ok ? bad : is_clipped(w, d, eps) ? clipped : good;
    if (ok && block->shift != nullptr) *block->shift = 1;
  }
};

/// flag[0] = is_clipped().
template <class T>
struct FlagClipped {
  const T* w;
  std::int64_t d;
  T eps;
  std::int32_t* flag;
  DKFAC_HD void operator()(std::int64_t) const { *flag = is_clipped(w, d, eps) ? 1 : 0; }
};

}  // namespace dkfac::kfac::cuda
