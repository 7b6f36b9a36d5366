#include "kfac/schedule/staleness.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "dkfac/core/ops.h"

#include "core/shared/checks.h"
#include "core/shared/host.h"
#include "kfac/schedule/backend_step.h"

namespace dkfac::kfac {
namespace {

/// Sums of squares of x - y and of y.
struct Squares {
  double difference = 0, old = 0;
  void add(Squares other, double weight) {
    difference += weight * other.difference;
    old += weight * other.old;
  }
};

template <class T>
Squares squares(const T* x, const T* y, std::int64_t n) {
  // Independent partial sums, to hide the latency of additions.
  constexpr std::int64_t kLanes = 8;
  std::array<double, kLanes> difference{}, old{};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (std::int64_t l = 0; l < kLanes; ++l) {
      const auto lane = static_cast<std::size_t>(l);
      const double b = y[i + l], d = x[i + l] - b;
      difference[lane] += d * d;
      old[lane] += b * b;
    }
  for (; i < n; ++i) {
    const double b = y[i], d = x[i] - b;
    difference[0] += d * d;
    old[0] += b * b;
  }
  Squares sums;
  for (const double d : difference) sums.difference += d;
  for (const double b : old) sums.old += b;
  return sums;
}

template <class T>
Squares triangles(const T* x, const T* y, std::int64_t n, std::int64_t dim) {
  Squares sums;
  sums.add(squares(x, y, n), 2);
  const std::int64_t size = ops::packed_size(dim);
  Squares diagonal;
  for (std::int64_t first = 0; first < n; first += size)
    for (std::int64_t r = 0; r < dim; ++r)
      diagonal.add(squares(x + first + ops::packed_size(r + 1) - 1,
                           y + first + ops::packed_size(r + 1) - 1, 1),
                   1);
  sums.add(diagonal, -1);
  return sums;
}

}  // namespace

Intervals next_intervals(Intervals intervals, bool similar_to_last, bool similar_to_before,
                         std::int64_t max_interval) {
  std::int64_t next = intervals.last;
  if (!similar_to_last) {
    next = std::max<std::int64_t>(1, intervals.last / 2);
  } else if (similar_to_before) {
    next = intervals.last + intervals.before;
  }
  const std::int64_t most = max_interval > 0 ? std::min(max_interval, kMaxInterval) : kMaxInterval;
  return {std::min(next, most), intervals.last};
}

double drift(SymmetricForm form, ConstTensorView x, ConstTensorView y) {
  constexpr std::string_view kName = "drift";
  check_shape(kName, "the new value", x, y.shape());
  DKFAC_CHECK(x.dtype() == y.dtype() && x.is_contiguous() && y.is_contiguous(),
              "[drift] values of ", x.dtype(), " and ", y.dtype(),
              "; both must be contiguous and of one type");
  require_host(kName, x.device());
  Squares sums;
  with_real(kName, x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T *a = x.data<T>(), *b = y.data<T>();
    const std::int64_t n = x.numel();
    if (form.dim > 0) {
      sums = triangles(a, b, n, form.dim);
    } else {
      sums = squares(a, b, n);
      const std::int64_t c = x.dim(x.ndim() - 1);
      if (form.cross) sums.add(squares(a + c, b + c, c), 1);
    }
  });
  if (!(sums.old > 0)) return -1;
  const double relative = std::sqrt(std::max(sums.difference, 0.0) / sums.old);
  return std::isfinite(relative) ? relative : -1;
}

StatisticHistory::StatisticHistory(Context& ctx, const Shape& shape, DType dtype)
    : last_(Tensor::zeros(ctx, shape, dtype)), before_(Tensor::zeros(ctx, shape, dtype)) {}

StatisticHistory::Similarity StatisticHistory::similarity(double to_last, double to_before,
                                                          double alpha) {
  const auto similar = [alpha](double d) { return d >= 0 && d < alpha; };
  return {.to_last = similar(to_last), .to_before = similar(to_before), .drift = to_last};
}

void StatisticHistory::compare(Context& ctx, SymmetricForm form, ConstTensorView x, double alpha,
                               TensorView drifts) const {
  const TensorView to_last = drifts.slice(0, 0, 1), to_before = drifts.slice(0, 1, 1);
  kernels::measure_drift(ctx, form, x, last_, to_last);
  // The rule needs the older value only when the last one is similar, which the host knows here.
  if (ctx.device().is_cuda() || similarity(*to_last.data<double>(), -1, alpha).to_last)
    kernels::measure_drift(ctx, form, x, before_, to_before);
  else
    ops::fill(ctx, to_before, -1);
}

void StatisticHistory::keep(Context& ctx, ConstTensorView x) {
  std::swap(last_, before_);
  ops::copy(ctx, x, last_);
  known_ = std::min(known_ + 1, 2);
}

}  // namespace dkfac::kfac
