#include <algorithm>
#include <cstdint>

#include "core/backend_linalg.h"
#include "core/cpu/matrix.h"
#include "core/cuda/gram.h"
#include "core/cuda/gram_functors.h"
#include "core/cuda/patch_cost.h"
#include "core/cuda/products.h"
#include "core/shared/cuda/launch.cuh"
#include "core/shared/element.h"

namespace dkfac::cuda {
namespace {

using cpu::row_stride;
using element::Type;
using element::visit_computing;
using element::visit_floating;

bool is_half(ConstTensorView x) { return x.dtype() == DType::f16 || x.dtype() == DType::bf16; }

/// c = alpha * a'b + beta*c, or its lower triangle, for 16-bit a and b of many rows.
void add_product(Context& ctx, double alpha, ConstTensorView a, ConstTensorView b, double beta,
                 TensorView c, bool lower) {
  const std::int64_t m = a.dim(1), n = b.dim(1);
  const RowGroups split = row_groups(a.dim(0), m, n);
  const auto in_groups = [&](ConstTensorView x, std::int64_t first) {
    const std::int64_t stride = row_stride(x);
    return batch_from(x.slice(0, first, split.groups * split.per), split.groups, split.per * stride,
                      split.per, x.dim(1), stride);
  };
  Scratch scratch(ctx);
  const TensorView parts = scratch.take({split.groups, m, n});
  std::int64_t first = 0;
  for (std::int64_t round = 0; round < split.rounds; ++round, first += split.groups * split.per) {
    multiply_batches(ctx, in_groups(a, first), in_groups(b, first), round == 0 ? 0 : 1, parts);
  }
  if (split.rest > 0) {
    multiply(ctx, ops::Trans::yes, ops::Trans::no, 1, a.slice(0, first, split.rest),
             b.slice(0, first, split.rest), 1, matrix_at(parts, 0), Rounding::none);
  }
  for_each_2d(
      ctx.stream(), m, n,
      SumPartsInto<float>{parts.data<float>(), split.groups, m, n, c.data<float>(), row_stride(c),
                          static_cast<float>(alpha), static_cast<float>(beta), lower});
}

/// Adds a symmetric product of 16-bit values, which cuBLAS lacks: the lower triangle is computed as
/// squares on the diagonal and the rectangles left of them.
void add_half(Context& ctx, double alpha, ConstTensorView x, double beta, TensorView c) {
  const std::int64_t n = x.dim(1), most = triangle_panel(n);
  for (std::int64_t first = 0; first < n; first += most) {
    const std::int64_t count = std::min(most, n - first);
    const ConstTensorView panel = x.slice(1, first, count);
    const TensorView rows = c.slice(0, first, count);
    if (first > 0) {
      add_product(ctx, alpha, panel, x.slice(1, 0, first), beta, rows.slice(1, 0, first), false);
    }
    add_product(ctx, alpha, panel, panel, beta, rows.slice(1, first, count), true);
  }
}

/// out[c] = alpha * sum over rows of x(:, c) + beta*out[c].
template <class S, class T>
void add_columns(Context& ctx, double alpha, ConstTensorView x, double beta, T* out) {
  reduce_cols<T>(ctx, x.dim(1), x.dim(0), Sum<T>{}, ColumnElement<S, T>{x.data<S>(), row_stride(x)},
                 BlendInto<T>{out, static_cast<T>(alpha), static_cast<T>(beta)});
}

}  // namespace

void multiply_batches(Context& ctx, ConstTensorView a, ConstTensorView b, double beta,
                      TensorView c) {
  multiply_batched("patch_gram", ctx, ops::Trans::yes, ops::Trans::no, 1, a, b, beta, c,
                   Rounding::none);
}

void column_sums(Context& ctx, double alpha, ConstTensorView x, double beta, TensorView out) {
  visit_floating(x.dtype(), [&]<class S>(Type<S>) {
    add_columns<S>(ctx, alpha, x, beta, out.data<SumOf<S>>());
  });
}

void add_rows(Context& ctx, double alpha, ConstTensorView x, double beta, TensorView c) {
  const std::int64_t width = x.dim(1);
  if (width == 0) return;
  const TensorView square = c.slice(0, 0, width).slice(1, 0, width);
  is_half(x) ? add_half(ctx, alpha, x, beta, square) : syrk(ctx, alpha, x, beta, square);
  if (c.dim(0) > width) column_sums(ctx, alpha, x, beta, c.slice(0, width, 1).slice(1, 0, width));
}

void set_corner(Context& ctx, double alpha, std::int64_t rows, double beta, TensorView c) {
  const std::int64_t last = c.dim(0) - 1;
  visit_computing(c.dtype(), [&]<class T>(Type<T>) {
    T* corner = c.data<T>() + last * row_stride(c) + last;
    for_each(ctx.stream(), 1,
             BlendOne<T>{corner, static_cast<T>(alpha * static_cast<double>(rows)),
                         static_cast<T>(beta)});
  });
}

void gram(Context& ctx, double alpha, ConstTensorView x, double beta, TensorView c) {
  add_rows(ctx, alpha, x, beta, c);
  if (c.dim(0) > x.dim(1)) set_corner(ctx, alpha, x.dim(0), beta, c);
}

}  // namespace dkfac::cuda
