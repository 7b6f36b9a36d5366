#include <atomic>
#include <cstring>

#include "core/backend.h"
#include "core/cpu/element.h"
#include "core/cpu/loops.h"
#include "vectorized.h"

namespace dkfac::cpu {
namespace {

/// Elements of one counting block.
constexpr std::int64_t kBlock = 4096;

/// d[i] = f(s[i], d[i]). The views may be the same, so no `restrict`: only iterations are
/// independent.
template <class S, class D, class F>
void map_row(const S* s, std::int64_t s_stride, D* d, std::int64_t d_stride, std::int64_t n, F f) {
  if (s_stride == 1 && d_stride == 1) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) d[i] = f(s[i], d[i]);
  } else {
    for (std::int64_t i = 0; i < n; ++i) d[i * d_stride] = f(s[i * s_stride], d[i * d_stride]);
  }
}

template <class S, class D, class F>
void map(ConstTensorView src, TensorView dst, F f) {
  const auto plan = plan_rows(src, dst);
  const S* s = src.data<S>();
  D* d = dst.data<D>();
  for_all_segments(plan, [&](const auto& offset, std::int64_t n) {
    vectorized([&] {
      map_row(s + offset[0], plan.inner_stride(0), d + offset[1], plan.inner_stride(1), n, f);
    });
  });
}

/// d[i] = f(s[i]); returns the sum of count(s[i], d[i]), each 0 or 1. n <= kBlock, so that 32 bits
/// hold the count.
template <class T, class F, class Count>
std::int32_t map_block(const T* s, std::int64_t s_stride, T* d, std::int64_t d_stride,
                       std::int64_t n, F f, Count count) {
  std::int32_t found = 0;
  const auto map = [&](const T& from, T& to) {
    const T x = from;
    to = f(x);
    found += count(x, to);
  };
  if (s_stride == 1 && d_stride == 1) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) map(s[i], d[i]);
  } else {
    for (std::int64_t i = 0; i < n; ++i) map(s[i * s_stride], d[i * d_stride]);
  }
  return found;
}

template <class T, class F, class Count>
std::int64_t map_counting(ConstTensorView src, TensorView dst, F f, Count count) {
  const auto plan = plan_rows(src, dst);
  const T* s = src.data<T>();
  T* d = dst.data<T>();
  std::atomic<std::int64_t> found = 0;
  for_all_segments(plan, [&](const auto& offset, std::int64_t n) {
    std::int64_t here = 0;
    for (std::int64_t i = 0; i < n; i += kBlock) {
      here += vectorized([&] {
        return map_block(s + offset[0] + i * plan.inner_stride(0), plan.inner_stride(0),
                         d + offset[1] + i * plan.inner_stride(1), plan.inner_stride(1),
                         std::min(kBlock, n - i), f, count);
      });
    }
    if (here != 0) found.fetch_add(here, std::memory_order_relaxed);
  });
  return found;
}

template <class T>
void copy_values(ConstTensorView src, TensorView dst) {
  const auto plan = plan_rows(src, dst);
  if (!plan.unit()) return map<T, T>(src, dst, [](T x, T) { return x; });
  const T* s = src.data<T>();
  T* d = dst.data<T>();
  for_all_segments(plan, [&](const auto& offset, std::int64_t n) {
    std::memmove(d + offset[1], s + offset[0], static_cast<std::size_t>(n) * sizeof(T));
  });
}

/// dst = D(scale * src) with the product in Wide.
template <class S, class D, class Wide>
void scale_values(ConstTensorView src, TensorView dst, double scale) {
  const auto factor = static_cast<Wide>(scale);
  map<S, D>(src, dst, [factor](S x, D) { return store<D>(factor * load<Wide>(x)); });
}

template <class S, class D>
void cast_values(ConstTensorView src, TensorView dst, double scale) {
  if constexpr (std::is_same_v<S, D>) {
    if (scale == 1.0) return copy_values<S>(src, dst);
  }
  if constexpr (!std::is_same_v<S, double>) {
    if (exact_in_f32<D>(scale)) return scale_values<S, D, float>(src, dst, scale);
  }
  scale_values<S, D, double>(src, dst, scale);
}

}  // namespace

void copy(Context&, ConstTensorView src, TensorView dst) {
  visit_any(dst.dtype(), [&]<class T>(Type<T>) { copy_values<T>(src, dst); });
}

void fill(Context&, TensorView x, double value) {
  visit_any(x.dtype(), [&]<class T>(Type<T>) {
    const T element = store<T>(value);
    map<T, T>(x, x, [element](T, T) { return element; });
  });
}

void cast(Context&, ConstTensorView src, TensorView dst, double scale) {
  visit_floating(src.dtype(), [&]<class S>(Type<S>) {
    visit_floating(dst.dtype(), [&]<class D>(Type<D>) { cast_values<S, D>(src, dst, scale); });
  });
}

void axpby(Context&, double alpha, ConstTensorView x, double beta, TensorView y) {
  visit_computing(y.dtype(), [&]<class T>(Type<T>) {
    const auto a = static_cast<T>(alpha);
    const auto b = static_cast<T>(beta);
    if (beta == 0.0) {
      map<T, T>(x, y, [a](T xi, T) { return a * xi; });
    } else {
      map<T, T>(x, y, [a, b](T xi, T yi) { return a * xi + b * yi; });
    }
  });
}

void copy_checked(Context&, double scale, ConstTensorView src, TensorView dst,
                  TensorView nonfinite) {
  visit_computing(dst.dtype(), [&]<class T>(Type<T>) {
    const auto factor = static_cast<T>(scale);
    const std::int64_t bad = map_counting<T>(
        src, dst, [factor](T x) { return factor * x; }, [](T x, T) { return is_bad(x); });
    add_count(nonfinite, bad);
  });
}

void round_to(Context&, DType type, double scale, ConstTensorView src, TensorView dst,
              TensorView underflow) {
  visit_computing(dst.dtype(), [&]<class T>(Type<T>) {
    visit_floating(type, [&]<class R>(Type<R>) {
      const auto factor = static_cast<T>(scale);
      const std::int64_t lost = map_counting<T>(
          src, dst, [factor](T x) { return rounded_to<R>(factor * x); },
          [](T x, T y) { return static_cast<std::int32_t>(x != T{0}) & (y == T{0}); });
      add_count(underflow, lost);
    });
  });
}

}  // namespace dkfac::cpu
