#include <array>
#include <atomic>
#include <cmath>

#include "core/backend.h"
#include "core/cpu/element.h"
#include "core/shared/parallel.h"
#include "vectorized.h"

namespace dkfac::cpu {
namespace {

/// First index of row r in a packed lower triangle.
constexpr std::int64_t row_start(std::int64_t r) { return r * (r + 1) / 2; }

/// Calls f(begin, end) over ranges of rows with about equally many elements of the triangle.
template <class F>
void for_row_ranges(std::int64_t d, F&& f) {
  const std::int64_t parts = std::clamp<std::int64_t>(row_start(d) / kGrain, 1, threads());
  const auto bound = [&](std::int64_t part) {
    const double fraction = static_cast<double>(part) / static_cast<double>(parts);
    return part == parts ? d
                         : static_cast<std::int64_t>(std::sqrt(fraction) * static_cast<double>(d));
  };
  parallel_parts(static_cast<int>(parts), [&](int part) { f(bound(part), bound(part + 1)); });
}

/// Copies a row; returns its number of NaNs and Infs.
template <class T>
std::int32_t copy_row(const T* src, std::int64_t n, T* dst) {
  std::int32_t bad = 0;
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) {
    bad += is_bad(src[i]);
    dst[i] = src[i];
  }
  return bad;
}

/// a[c, r] = packed (r, c) for rows [r0, r1), in tiles whose part of `packed` stays in the L1
/// cache. One cache line is written at a time.
template <class T>
void copy_to_upper(const T* packed, T* a, std::int64_t row_stride, std::int64_t r0,
                   std::int64_t r1) {
  constexpr std::int64_t kTileRows = 16, kTileColumns = 128;
  for (std::int64_t first = r0; first < r1; first += kTileRows) {
    const std::int64_t last = std::min(first + kTileRows, r1);
    for (std::int64_t c0 = 0; c0 < last; c0 += kTileColumns) {
      for (std::int64_t c = c0; c < std::min(c0 + kTileColumns, last); ++c) {
        std::int64_t r = std::max(first, c + 1);
        const T* from = packed + row_start(r) + c;
        for (T* to = a + c * row_stride; r < last; from += ++r) to[r] = *from;
      }
    }
  }
}

}  // namespace

void pack_lower(Context&, ConstTensorView a, TensorView packed, TensorView nonfinite) {
  visit_computing(a.dtype(), [&]<class T>(Type<T>) {
    const T* src = a.data<T>();
    T* dst = packed.data<T>();
    std::atomic<std::int64_t> bad = 0;
    for_row_ranges(a.dim(0), [&](std::int64_t begin, std::int64_t end) {
      std::int64_t here = 0;
      for (std::int64_t r = begin; r < end; ++r) {
        here +=
            vectorized([&] { return copy_row(src + r * a.stride(0), r + 1, dst + row_start(r)); });
      }
      bad.fetch_add(here, std::memory_order_relaxed);
    });
    if (!nonfinite.empty()) add_count(nonfinite, bad);
  });
}

void unpack_lower(Context&, ConstTensorView packed, TensorView a, ops::Upper upper) {
  visit_computing(a.dtype(), [&]<class T>(Type<T>) {
    const T* src = packed.data<T>();
    T* dst = a.data<T>();
    const std::int64_t stride = a.stride(0);
    for_row_ranges(a.dim(0), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        std::copy_n(src + row_start(r), r + 1, dst + r * stride);
      }
      if (upper == ops::Upper::filled) copy_to_upper(src, dst, stride, begin, end);
    });
  });
}

void packed_trace(Context&, ConstTensorView packed, std::int64_t d, TensorView out) {
  visit_computing(packed.dtype(), [&]<class T>(Type<T>) {
    const T* p = packed.data<T>();
    double trace = 0;
    for (std::int64_t r = 0; r < d; ++r) trace += static_cast<double>(p[row_start(r) + r]);
    store_scalar(out, trace);
  });
}

}  // namespace dkfac::cpu
