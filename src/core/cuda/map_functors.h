#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/row_plan.h"
#include "core/shared/cuda/device_code.h"
#include "core/shared/cuda/index.h"
#include "core/shared/pack.h"

/// Elementwise kernels from one view to another: dst[i] = f(), f(src[i]) or f(src[i], dst[i]),
/// depending on the signature of f; dst is read in the last case only. If f has count(x, y) of the
/// values read and written, the functors return its sum. src and dst may be the same.
namespace dkfac::cuda {

/// Number of elements of the wider type in 16 bytes.
template <class S, class D>
inline constexpr std::size_t kCommonPack = kPack<S> < kPack<D> ? kPack<S> : kPack<D>;

template <class F, class S, class D>
inline constexpr bool reads_dst = std::is_invocable_v<F, S, D>;

template <class S, class D, class F>
DKFAC_HD D mapped(const F& f, const S& x, const D& y) {
  if constexpr (std::is_invocable_v<F>) {
    return f();
  } else if constexpr (reads_dst<F, S, D>) {
    return f(x, y);
  } else {
    return f(x);
  }
}

template <class S, class D, class F>
DKFAC_HD std::int64_t counted(const F& f, const S& x, const D& y) {
  if constexpr (requires { f.count(x, y); }) {
    return f.count(x, y);
  } else {
    return 0;
  }
}

/// Maps one element; reads no more than f needs.
template <class S, class D, class F>
DKFAC_HD std::int64_t map_element(const F& f, const S* src, D* dst) {
  S x{};
  D y{};
  if constexpr (!std::is_invocable_v<F>) x = *src;
  if constexpr (reads_dst<F, S, D>) y = *dst;
  y = mapped<S, D>(f, x, y);
  *dst = y;
  return counted<S, D>(f, x, y);
}

/// Maps contiguous views of n elements; index i is a pack of kCommonPack elements. `aligned`: both
/// pointers are multiples of a pack of their type.
template <class S, class D, class F>
struct MapPacked {
  static constexpr std::int64_t kWidth = kCommonPack<S, D>;
  using PackS = Pack<S, kCommonPack<S, D>>;
  using PackD = Pack<D, kCommonPack<S, D>>;
  const S* src;
  D* dst;
  std::int64_t n;
  bool aligned;
  F f;

  DKFAC_HD std::int64_t operator()(std::int64_t i) const {
    const std::int64_t first = i * kWidth;
    std::int64_t count = 0;
    if (aligned && first + kWidth <= n) {
      PackS x{};
      PackD y{};
      if constexpr (!std::is_invocable_v<F>) x = as_packs<const PackS>(src)[i];
      if constexpr (reads_dst<F, S, D>) y = as_packs<const PackD>(dst)[i];
      for (std::size_t k = 0; k < kCommonPack<S, D>; ++k) {
        y.at[k] = mapped<S, D>(f, x.at[k], y.at[k]);
        count += counted<S, D>(f, x.at[k], y.at[k]);
      }
      as_packs<PackD>(dst)[i] = y;
      return count;
    }
    for (std::int64_t k = first; k < n && k < first + kWidth; ++k)
      count += map_element<S, D>(f, src + k, dst + k);
    return count;
  }
  [[nodiscard]] std::int64_t size() const { return (n + kWidth - 1) / kWidth; }
};

template <class T, std::size_t W>
[[nodiscard]] bool is_aligned(const T* data) {
  return reinterpret_cast<std::uintptr_t>(data) % sizeof(Pack<T, W>) == 0;
}

/// Computes the offsets of element (row, column) of a plan, where `row` counts all rows.
template <std::size_t N>
DKFAC_HD void find_offsets(const detail::RowPlan<N>& plan, std::int64_t row, std::int64_t column,
                           std::int64_t (&offset)[N]) {
  for (std::size_t v = 0; v < N; ++v) offset[v] = column * plan.stride[v][kMaxDims - 1];
  for (int dim = kMaxDims - 2; dim >= 0 && row > 0; --dim) {
    const auto d = static_cast<std::size_t>(dim);
    std::int64_t left = 0, at = row;
    if (row >= plan.extent[d]) {
      left = quotient(row, plan.extent[d]);
      at = row - left * plan.extent[d];
    }
    for (std::size_t v = 0; v < N; ++v) offset[v] += at * plan.stride[v][d];
    row = left;
  }
}

/// Maps views of any strides, by (row, column) or by element number.
template <class S, class D, class F>
struct MapRows {
  const S* src;
  D* dst;
  detail::RowPlan<2> plan;
  F f;

  DKFAC_HD std::int64_t operator()(std::int64_t row, std::int64_t column) const {
    std::int64_t offset[2];
    find_offsets(plan, row, column, offset);
    return map_element<S, D>(f, src + offset[0], dst + offset[1]);
  }
  DKFAC_HD std::int64_t operator()(std::int64_t i) const {
    const std::int64_t inner = plan.extent[kMaxDims - 1], row = quotient(i, inner);
    return (*this)(row, i - row * inner);
  }
  [[nodiscard]] std::int64_t size() const { return plan.total; }
};

/// Map of reduce_rows() that sums the counts of a mapping.
template <class M>
struct CountOf {
  M mapping;
  DKFAC_HD std::int64_t operator()(std::int64_t, std::int64_t i) const { return mapping(i); }
};

}  // namespace dkfac::cuda
