#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/cuda/map_functors.h"
#include "core/shared/element.h"

/// Terms and results of reductions by reduce_rows and reduce_cols.
namespace dkfac::cuda {

/// Term of a reduction: f(x) or f(x, y) over a pack of elements, combined by Op in their order.
/// Term i is elements [i * kWidth, (i + 1) * kWidth) of views with any strides, so the order of a
/// whole reduction depends on the number of elements alone. x and y may be the same pointer; y is
/// read by f(x, y) only. `aligned`: both views are contiguous and aligned to a pack.
template <class T, class Op, class F>
struct Terms {
  static constexpr std::int64_t kWidth = kPack<T>;
  static constexpr bool kPair = std::is_invocable_v<F, T, T>;
  using Values = Pack<T, kPack<T>>;
  const T* x;
  const T* y;
  dkfac::detail::RowPlan<2> plan;
  bool aligned;
  Op op;
  F f;

  DKFAC_HD auto operator()(std::int64_t, std::int64_t i) const {
    const std::int64_t first = i * kWidth;
    auto value = op.identity();
    if (aligned && first + kWidth <= plan.total) {
      const Values a = as_packs<const Values>(x)[i];
      Values b = a;
      if constexpr (kPair) b = as_packs<const Values>(y)[i];
      for (std::size_t k = 0; k < kPack<T>; ++k) value = op(value, term(a.at[k], b.at[k]));
      return value;
    }
    const std::int64_t inner = plan.extent[kMaxDims - 1];
    for (std::int64_t k = first; k < plan.total && k < first + kWidth; ++k) {
      const std::int64_t row = quotient(k, inner);
      std::int64_t offset[2];
      find_offsets(plan, row, k - row * inner, offset);
      const T a = x[offset[0]];
      value = op(value, term(a, kPair ? y[offset[1]] : a));
    }
    return value;
  }
  DKFAC_HD auto term(T a, T b) const {
    if constexpr (kPair) {
      return f(a, b);
    } else {
      return f(a);
    }
  }
  [[nodiscard]] std::int64_t size() const { return (plan.total + kWidth - 1) / kWidth; }
};

struct AsDouble {
  template <class T>
  DKFAC_HD double operator()(T x) const {
    return static_cast<double>(x);
  }
};

struct Product {
  template <class T>
  DKFAC_HD double operator()(T x, T y) const {
    return static_cast<double>(x) * static_cast<double>(y);
  }
};

template <class T>
struct Magnitude {
  DKFAC_HD T operator()(T x) const { return std::abs(x); }
};

struct IsBad {
  template <class T>
  DKFAC_HD std::int64_t operator()(T x) const {
    return element::is_bad(x);
  }
};

template <class T>
struct StoreResult {
  T* to;
  DKFAC_HD void operator()(std::int64_t, double value) const { *to = static_cast<T>(value); }
};

/// Stores a maximum; NaN becomes infinity.
template <class T>
struct StoreLargest {
  T* to;
  DKFAC_HD void operator()(std::int64_t, double value) const {
    *to = static_cast<T>(value != value ? std::numeric_limits<double>::infinity() : value);
  }
};

/// Returns element k of column c.
template <class T>
struct ColumnTerm {
  const T* x;
  std::int64_t row_stride;
  DKFAC_HD double operator()(std::int64_t c, std::int64_t k) const {
    return static_cast<double>(x[k * row_stride + c]);
  }
};

/// y[c] = alpha * sum + beta * y[c]; beta = 0 does not read y.
template <class T>
struct StoreColumn {
  double alpha, beta;
  T* y;
  std::int64_t stride;
  DKFAC_HD void operator()(std::int64_t c, double sum) const {
    T& to = y[c * stride];
    const double old = beta == 0.0 ? 0.0 : beta * static_cast<double>(to);
    to = static_cast<T>(alpha * sum + old);
  }
};

}  // namespace dkfac::cuda
