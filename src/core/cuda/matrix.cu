#include "core/backend_linalg.h"
#include "core/cpu/matrix.h"
#include "core/cuda/matrix_functors.h"
#include "core/cuda/triangle_functors.h"
#include "core/shared/cuda/launch.cuh"
#include "core/shared/element.h"

namespace dkfac::cuda {
namespace {

using cpu::row_stride;
using element::Type;
using element::visit_computing;

void scale(Context& ctx, double beta, TensorView c, bool lower) {
  if (beta == 1) return;
  visit_computing(c.dtype(), [&]<class T>(Type<T>) {
    for_each_2d(ctx.stream(), c.dim(0), c.dim(1),
                ScaleElement<T>{c.data<T>(), row_stride(c), static_cast<T>(beta), lower});
  });
}

}  // namespace

void symmetrize(Context& ctx, TensorView a) {
  visit_computing(a.dtype(), [&]<class T>(Type<T>) {
    T* data = a.data<T>();
    const std::int64_t row = row_stride(a);
    for_each_transposed<T>(ctx.stream(), a.dim(0), a.dim(0), LoadStrictLower<T>{data, row},
                           StoreStrictlyUpper<T>{data, row});
  });
}

void add_diagonal(Context& ctx, TensorView a, double value) {
  visit_computing(a.dtype(), [&]<class T>(Type<T>) {
    for_each(ctx.stream(), a.dim(0),
             AddToDiagonal<T>{a.data<T>(), row_stride(a), static_cast<T>(value)});
  });
}

void scale_matrix(Context& ctx, double beta, TensorView c) { scale(ctx, beta, c, false); }

void scale_lower(Context& ctx, double beta, TensorView c) { scale(ctx, beta, c, true); }

}  // namespace dkfac::cuda
