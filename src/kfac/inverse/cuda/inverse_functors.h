#pragma once

#include <cmath>
#include <cstdint>

#include "core/shared/cuda/device_code.h"

/// Statuses of inverses and decompositions, and operations on eigenvalues, on the device.
namespace dkfac::kfac::cuda {

template <class T>
DKFAC_HD bool is_finite(T x) {
  return x - x == T{};
}

/// Row of element i of a packed lower triangle.
DKFAC_HD inline std::int64_t packed_row(std::int64_t i) {
  auto r = static_cast<std::int64_t>((std::sqrt(8.0 * static_cast<double>(i) + 1) - 1) / 2);
  while (r * (r + 1) / 2 > i) --r;
  while ((r + 1) * (r + 2) / 2 <= i) ++r;
  return r;
}

/// d - row for a NaN or an Inf of a packed triangle, 0 for finite elements: the maximum belongs to
/// the first row with one.
template <class T>
struct FirstNonfinite {
  const T* packed;
  std::int64_t d;
  DKFAC_HD std::int32_t operator()(std::int64_t, std::int64_t i) const {
    return is_finite(packed[i]) ? 0 : static_cast<std::int32_t>(d - packed_row(i));
  }
};

/// Sets a[r,c] = 0 if the flag is set: solvers are undefined for a NaN.
template <class T>
struct ClearIf {
  const std::int32_t* flag;
  T* a;
  std::int64_t stride;
  DKFAC_HD void operator()(std::int64_t r, std::int64_t c) const {
    if (*flag != 0) a[r * stride + c] = T{};
  }
};

/// x[i,i] += number.
template <class T>
struct AddNumber {
  const double* number;
  T* x;
  std::int64_t stride;
  DKFAC_HD void operator()(std::int64_t i) const { x[i * (stride + 1)] += static_cast<T>(*number); }
};

/// x[i,i] = nan if the status is not 0.
template <class T>
struct FailDiagonal {
  const std::int32_t* status;
  T* x;
  std::int64_t stride;
  T nan;
  DKFAC_HD void operator()(std::int64_t i) const {
    if (*status != 0) x[i * (stride + 1)] = nan;
  }
};

/// 1 for a diagonal element that is not finite.
template <class T>
struct NonfiniteDiagonal {
  const T* x;
  std::int64_t stride;
  DKFAC_HD std::int32_t operator()(std::int64_t, std::int64_t i) const {
    return is_finite(x[i * (stride + 1)]) ? 0 : 1;
  }
};

/// Combines the status of invert_factor() from those of the input, the solvers and the result.
struct JoinStatus {
  std::int64_t d;
  const std::int32_t* nonfinite;  ///< FirstNonfinite
  const std::int32_t *first, *second;
  const std::int32_t* overflow;  ///< Not 0: the inverse is not finite.
  std::int32_t* info;
  DKFAC_HD void operator()(std::int64_t) const {
    const auto order = static_cast<std::int32_t>(d);
    *info = *nonfinite != 0  ? order - *nonfinite + 1
            : *first != 0    ? *first
            : *second != 0   ? *second
            : *overflow != 0 ? order
                             : 0;
  }
};

/// x[i] = max(x[i], 0); a NaN stays.
template <class T>
struct ClipNegative {
  T* x;
  std::int64_t stride;
  DKFAC_HD void operator()(std::int64_t i) const {
    if (x[i * stride] < T{}) x[i * stride] = T{};
  }
};

/// scaled[r,c] = q[r,c] / sqrt(max(w[c], 0) + shift); all contiguous.
struct ScaleVectors {
  const double *q, *w;
  double shift;
  double* scaled;
  std::int64_t n;
  DKFAC_HD void operator()(std::int64_t r, std::int64_t c) const {
    scaled[r * n + c] = q[r * n + c] / std::sqrt((w[c] > 0 ? w[c] : 0.0) + shift);
  }
};

}  // namespace dkfac::kfac::cuda
