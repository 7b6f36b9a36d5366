#include <array>
#include <atomic>
#include <bit>
#include <limits>

#include "core/backend.h"
#include "core/cpu/element.h"
#include "core/cpu/loops.h"
#include "vectorized.h"

// Sums are split into parts by the size of the data alone and added in a fixed order, so they are
// bitwise identical with every number of threads and instruction set.
namespace dkfac::cpu {
namespace {

constexpr int kMaxParts = 64;
constexpr std::int64_t kLanes = 16;
template <class T>
using Lanes = std::array<T, static_cast<std::size_t>(kLanes)>;

/// Adds lanes by a fixed tree: the upper half to the lower one until one is left.
double add_lanes(Lanes<double> lanes) {
  for (std::size_t width = lanes.size() / 2; width > 0; width /= 2) {
    for (std::size_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

/// Calls f(part, begin, end) for fixed parts of [0, n), in parallel; returns their number.
template <class F>
int for_parts(std::int64_t n, F&& f) {
  const int parts = static_cast<int>(std::clamp<std::int64_t>(n / kGrain, 1, kMaxParts));
  const std::int64_t each = (n + parts - 1) / parts;
  parallel_parts(parts, [&](int part) {
    f(static_cast<std::size_t>(part), std::min(part * each, n), std::min((part + 1) * each, n));
  });
  return parts;
}

/// Sum of segment(offsets, count) over the pieces of all rows.
template <std::size_t N, class Segment>
double sum_segments(const RowPlan<N>& plan, Segment&& segment) {
  std::array<double, kMaxParts> partial{};
  const int parts =
      for_parts(plan.total, [&](std::size_t part, std::int64_t begin, std::int64_t end) {
        double total = 0;
        for_segments(plan, begin, end,
                     [&](const auto& offset, std::int64_t n) { total += segment(offset, n); });
        partial[part] = total;
      });
  double total = 0;
  for (int part = 0; part < parts; ++part) total += partial[static_cast<std::size_t>(part)];
  return total;
}

/// Sum over i of term(i), in lanes so that it vectorises without reordering.
template <class Term>
double sum_terms(std::int64_t n, Term term) {
  Lanes<double> lanes{};
  double* sums = lanes.data();
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += term(i + lane);
  }
  for (std::int64_t lane = 0; i + lane < n; ++lane) sums[lane] += term(i + lane);
  return add_lanes(lanes);
}

/// Bit pattern of a magnitude. Patterns order like the magnitudes; NaN follows infinity.
template <class T>
using Pattern = std::conditional_t<sizeof(T) == 8, std::int64_t, std::int32_t>;

template <class T>
Pattern<T> largest_pattern(const T* x, std::int64_t stride, std::int64_t n) {
  Pattern<T> largest = 0;
  if (stride == 1) {
    for (std::int64_t i = 0; i < n; ++i) {
      largest = std::max(largest, std::bit_cast<Pattern<T>>(std::abs(x[i])));
    }
  } else {
    for (std::int64_t i = 0; i < n; ++i) {
      largest = std::max(largest, std::bit_cast<Pattern<T>>(std::abs(x[i * stride])));
    }
  }
  return largest;
}

template <class T>
std::int64_t count_bad(const T* x, std::int64_t stride, std::int64_t n) {
  constexpr std::int64_t kBlock = 4096;
  std::int64_t found = 0;
  for (std::int64_t first = 0; first < n; first += kBlock) {
    const T* block = x + first * stride;
    const std::int64_t count = std::min(kBlock, n - first);
    std::int32_t here = 0;
    if (stride == 1) {
      for (std::int64_t i = 0; i < count; ++i) here += is_bad(block[i]);
    } else {
      for (std::int64_t i = 0; i < count; ++i) here += is_bad(block[i * stride]);
    }
    found += here;
  }
  return found;
}

constexpr std::int64_t kColumns = 64;

/// sums[j] += x[r, first + j] over rows [begin, end), for up to kColumns columns. x starts at its
/// first column of this block.
template <class T>
void add_rows(const T* x, std::int64_t row_stride, std::int64_t begin, std::int64_t end,
              std::int64_t columns, double* sums) {
  std::int64_t r = begin;
  for (; r + 4 <= end; r += 4) {
    const T* x0 = x + r * row_stride;
    const T* x1 = x0 + row_stride;
    const T* x2 = x1 + row_stride;
    const T* x3 = x2 + row_stride;
#pragma GCC ivdep
    for (std::int64_t j = 0; j < columns; ++j) {
      sums[j] += (static_cast<double>(x0[j]) + static_cast<double>(x1[j])) +
                 (static_cast<double>(x2[j]) + static_cast<double>(x3[j]));
    }
  }
  for (; r < end; ++r) {
#pragma GCC ivdep
    for (std::int64_t j = 0; j < columns; ++j)
      sums[j] += static_cast<double>(x[r * row_stride + j]);
  }
}

/// partial[part, column] = sums over fixed parts of the rows.
template <class T>
void column_partials(ConstTensorView x, TensorView partial) {
  const std::int64_t rows = x.dim(0), columns = x.dim(1), parts = partial.dim(0);
  const std::int64_t blocks = (columns + kColumns - 1) / kColumns;
  const std::int64_t each = (rows + parts - 1) / parts;
  const T* data = x.data<T>();
  double* sums = partial.data<double>();
  const auto unit = [&](std::int64_t part, std::int64_t block) {
    const std::int64_t first = block * kColumns;
    const std::int64_t count = std::min(kColumns, columns - first);
    std::array<double, kColumns> local{};
    vectorized([&] {
      add_rows(data + first, x.stride(0), std::min(part * each, rows),
               std::min((part + 1) * each, rows), count, local.data());
    });
    std::copy_n(local.data(), count, sums + part * columns + first);
  };
  const bool worth_it = rows * columns > 2 * kGrain;
  const auto all = [&](int i) { unit(i / blocks, i % blocks); };
  const int units = static_cast<int>(parts * blocks);
  if (worth_it) return parallel_parts(units, all);
  for (int i = 0; i < units; ++i) all(i);
}

}  // namespace

void dot(Context&, ConstTensorView x, ConstTensorView y, TensorView out) {
  visit_computing(x.dtype(), [&]<class T>(Type<T>) {
    const auto plan = plan_rows(x, y);
    const std::int64_t sx = plan.inner_stride(0), sy = plan.inner_stride(1);
    const double total = sum_segments(plan, [&](const auto& offset, std::int64_t n) {
      const T* a = x.data<T>() + offset[0];
      const T* b = y.data<T>() + offset[1];
      const auto product = [](T u, T v) { return static_cast<double>(u) * static_cast<double>(v); };
      return vectorized([&] {
        if (plan.unit()) return sum_terms(n, [=](std::int64_t i) { return product(a[i], b[i]); });
        return sum_terms(n, [=](std::int64_t i) { return product(a[i * sx], b[i * sy]); });
      });
    });
    store_scalar(out, total);
  });
}

void sum(Context&, ConstTensorView x, TensorView out) {
  visit_computing(x.dtype(), [&]<class T>(Type<T>) {
    const auto plan = plan_rows(x);
    const std::int64_t stride = plan.inner_stride(0);
    const double total = sum_segments(plan, [&](const auto& offset, std::int64_t n) {
      const T* p = x.data<T>() + offset[0];
      const auto term = [p](std::int64_t i) { return static_cast<double>(p[i]); };
      return vectorized([&] {
        if (stride == 1) return sum_terms(n, term);
        return sum_terms(n, [=](std::int64_t i) { return term(i * stride); });
      });
    });
    store_scalar(out, total);
  });
}

void max_abs(Context&, ConstTensorView x, TensorView out) {
  visit_computing(x.dtype(), [&]<class T>(Type<T>) {
    const auto plan = plan_rows(x);
    std::array<Pattern<T>, kMaxParts> partial{};
    for_parts(plan.total, [&](std::size_t part, std::int64_t begin, std::int64_t end) {
      Pattern<T> largest = 0;
      for_segments(plan, begin, end, [&](const auto& offset, std::int64_t n) {
        const T* p = x.data<T>() + offset[0];
        largest = std::max(largest,
                           vectorized([&] { return largest_pattern(p, plan.inner_stride(0), n); }));
      });
      partial[part] = largest;
    });
    const T largest = std::bit_cast<T>(*std::max_element(partial.begin(), partial.end()));
    constexpr T kInfinity = std::numeric_limits<T>::infinity();
    store_scalar(out, static_cast<double>(std::isnan(largest) ? kInfinity : largest));
  });
}

void col_sum(Context& ctx, double alpha, ConstTensorView x, double beta, TensorView out) {
  constexpr std::int64_t kRowsPerPart = 512, kMaxRowParts = 16;
  const std::int64_t columns = x.dim(1);
  const std::int64_t parts = std::clamp<std::int64_t>(x.dim(0) / kRowsPerPart, 1, kMaxRowParts);
  Scratch scratch(ctx);
  const TensorView partial = scratch.take({parts, columns}, DType::f64);
  visit_computing(x.dtype(), [&]<class T>(Type<T>) {
    column_partials<T>(x, partial);
    const double* sums = partial.data<double>();
    T* y = out.data<T>();
    const std::int64_t stride = out.stride(0);
    for (std::int64_t j = 0; j < columns; ++j) {
      double total = 0;
      for (std::int64_t part = 0; part < parts; ++part) total += sums[part * columns + j];
      const double old = beta == 0.0 ? 0.0 : beta * static_cast<double>(y[j * stride]);
      y[j * stride] = static_cast<T>(alpha * total + old);
    }
  });
}

void count_nonfinite(Context&, ConstTensorView x, TensorView count) {
  visit_computing(x.dtype(), [&]<class T>(Type<T>) {
    const auto plan = plan_rows(x);
    std::atomic<std::int64_t> found = 0;
    for_all_segments(plan, [&](const auto& offset, std::int64_t n) {
      const T* p = x.data<T>() + offset[0];
      const auto bad = vectorized([&] { return count_bad(p, plan.inner_stride(0), n); });
      if (bad != 0) found.fetch_add(bad, std::memory_order_relaxed);
    });
    add_count(count, found);
  });
}

}  // namespace dkfac::cpu
