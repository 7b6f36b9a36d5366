#include <algorithm>

#include "dkfac/core/ops.h"

#include "core/shared/cuda/batched.h"
#include "core/shared/cuda/launch.cuh"
#include "core/shared/host.h"
#include "kfac/statistics/backend_statistics.h"
#include "kfac/statistics/cuda/ekfac_functors.h"

namespace dkfac::kfac::cuda {
namespace {

using dkfac::cuda::gemm_batched;
using ops::Trans;

void square(Context& ctx, TensorView x) {
  with_real(kEkfacScales, x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    dkfac::cuda::for_each(ctx.stream(), x.numel(), SquareInPlace<T>{x.data<T>()});
  });
}

/// sums += alpha * sum over samples of dw[count,out,d]^2.
void add_squares(Context& ctx, double alpha, ConstTensorView dw, TensorView sums) {
  with_real(kEkfacScales, dw.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const SquareOfSample<T> term{dw.data<T>(), sums.numel()};
    dkfac::cuda::reduce_cols<double>(ctx, sums.numel(), dw.dim(0), dkfac::cuda::Sum<double>{}, term,
                                     AddScaled<T>{sums.data<T>(), alpha});
  });
}

/// Returns x[n,d] times vectors[d,d].
TensorView project(Context& ctx, Scratch& scratch, ConstTensorView x, ConstTensorView vectors) {
  const TensorView out = scratch.take(x.shape(), x.dtype());
  ops::gemm(ctx, Trans::no, Trans::no, 1, x, vectors, 0, out);
  return out;
}

/// A view of `count` repetitions of a matrix, with stride 0.
ConstTensorView repeated(ConstTensorView x, std::int64_t count) {
  return {
      x.raw(), x.dtype(), {count, x.dim(0), x.dim(1)}, {0, x.stride(0), x.stride(1)}, x.device()};
}

/// x[count*rows,w] as [count,rows,w].
ConstTensorView as_batch(ConstTensorView x, std::int64_t count) {
  return x.reshape({count, x.dim(0) / count, x.dim(1)});
}

/// Adds samples of one position, whose gradient is an outer product: its square is the outer
/// product of the squares.
void add_outer_products(Context& ctx, const EkfacBasis& basis, double alpha, ConstTensorView a,
                        ConstTensorView g, TensorView scales) {
  Scratch scratch(ctx);
  const TensorView projected_a = project(ctx, scratch, a, basis.a);
  const TensorView projected_g = project(ctx, scratch, g, basis.g);
  square(ctx, projected_a);
  square(ctx, projected_g);
  ops::gemm(ctx, Trans::yes, Trans::no, alpha, projected_g, projected_a, 1, scales);
}

}  // namespace

void add_ekfac_samples(Context& ctx, const EkfacBasis& basis, double alpha, std::int64_t count,
                       TensorView a, TensorView g, TensorView scales) {
  const std::int64_t positions = count > 0 ? a.dim(0) / count : 0, d = a.dim(1), out = g.dim(1);
  if (positions == 0) return;
  if (positions == 1) return add_outer_products(ctx, basis, alpha, a, g, scales);
  Scratch scratch(ctx);
  const bool first = projects_first(positions, out, d);
  const ConstTensorView rows_a = as_batch(first ? project(ctx, scratch, a, basis.a) : a, count);
  const ConstTensorView rows_g = as_batch(first ? project(ctx, scratch, g, basis.g) : g, count);
  // Samples per panel of gradients, enough to keep a device busy.
  constexpr std::int64_t kPanelBytes = std::int64_t{64} << 20;
  const std::int64_t sample_bytes = out * d * static_cast<std::int64_t>(size_of(scales.dtype()));
  const std::int64_t step = std::clamp<std::int64_t>(kPanelBytes / sample_bytes, 1, count);
  const TensorView dw = scratch.take({step, out, d}, scales.dtype());
  const TensorView half = first ? dw : scratch.take(dw.shape(), scales.dtype());
  for (std::int64_t begin = 0; begin < count; begin += step) {
    const std::int64_t n = std::min(step, count - begin);
    const TensorView part = dw.slice(0, 0, n), temporary = half.slice(0, 0, n);
    gemm_batched(ctx, Trans::yes, Trans::no, 1, rows_g.slice(0, begin, n),
                 rows_a.slice(0, begin, n), 0, part);
    if (!first) {
      ops::gemm(ctx, Trans::no, Trans::no, 1, part.reshape({n * out, d}), basis.a, 0,
                temporary.reshape({n * out, d}));
      gemm_batched(ctx, Trans::yes, Trans::no, 1, repeated(basis.g, n), temporary, 0, part);
    }
    add_squares(ctx, alpha, part, scales);
  }
}

}  // namespace dkfac::kfac::cuda
