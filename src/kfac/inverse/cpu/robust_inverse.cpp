#include <algorithm>
#include <cmath>
#include <limits>

#include "dkfac/core/ops.h"

#include "core/shared/host.h"
#include "kfac/inverse/backend_robust_inverse.h"
#include "kfac/inverse/block_triangular.h"

namespace dkfac::kfac::cpu {
namespace {

using ops::Trans;

/// Sets negative eigenvalues to 0. Returns whether one was below 0 by more than rounding: less than
/// -16 d eps times the largest.
template <class T>
bool clip_values(TensorView values) {
  T* w = values.data<T>();
  const std::int64_t d = values.dim(0);
  const T bound = T{16} * static_cast<T>(d) * std::numeric_limits<T>::epsilon() *
                  std::max(std::abs(w[0]), std::abs(w[d - 1]));
  const bool clipped = w[0] < -bound;
  for (std::int64_t i = 0; i < d; ++i) w[i] = std::max(w[i], T{0});
  return clipped;
}

}  // namespace

void solve_rows(Context& ctx, TensorView l, ConstTensorView x, TensorView out) {
  invert_diagonal_blocks(ctx, l);
  Scratch scratch(ctx);
  const TensorView part = scratch.take({solve_block(l.dim(0)), x.dim(1)}, x.dtype());
  for_blocks(l.dim(0), [&](std::int64_t k, std::int64_t n) {
    const TensorView rest = part.slice(0, 0, n);
    ops::copy(ctx, x.slice(0, k, n), rest);
    if (k > 0)
      ops::gemm(ctx, Trans::no, Trans::no, -1, l.slice(0, k, n).slice(1, 0, k), out.slice(0, 0, k),
                1, rest);
    ops::gemm(ctx, Trans::no, Trans::no, 1, l.slice(0, k, n).slice(1, k, n), rest, 0,
              out.slice(0, k, n));
  });
}

void scale_vectors(Context&, ConstTensorView q, ConstTensorView w, double shift,
                   TensorView scaled) {
  const double *vectors = q.data<double>(), *values = w.data<double>();
  double* out = scaled.data<double>();
  const std::int64_t n = q.dim(0);
  for (std::int64_t r = 0; r < n; ++r)
    for (std::int64_t c = 0; c < n; ++c)
      out[r * n + c] = vectors[r * n + c] / std::sqrt(std::max(values[c], 0.0) + shift);
}

void add_damping(Context& ctx, ConstTensorView damping, TensorView x) {
  ops::add_diagonal(ctx, x, *damping.data<double>());
}

void fail_where(Context& ctx, ConstTensorView info, TensorView x) {
  if (*info.data<std::int32_t>() != 0)
    ops::add_diagonal(ctx, x, std::numeric_limits<double>::quiet_NaN());
}

bool clip_eigenvalues(Context&, TensorView values) {
  bool clipped = false;
  with_real("inverse", values.dtype(),
            [&](auto zero) { clipped = clip_values<decltype(zero)>(values); });
  return clipped;
}

}  // namespace dkfac::kfac::cpu
