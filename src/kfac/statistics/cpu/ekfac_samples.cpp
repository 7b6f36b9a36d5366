#include <algorithm>

#include "dkfac/core/ops.h"

#include "core/shared/host.h"
#include "core/shared/parallel.h"
#include "kfac/statistics/backend_statistics.h"

namespace dkfac::kfac::cpu {
namespace {

using dkfac::cpu::kGrain;
using dkfac::cpu::parallel_ranges;
using ops::Trans;

/// sums += alpha * x^2, elementwise over contiguous views of one size.
void add_squares(double alpha, ConstTensorView x, TensorView sums) {
  with_real(kEkfacScales, x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* from = x.data<T>();
    T* to = sums.data<T>();
    const T weight = static_cast<T>(alpha);
    parallel_ranges(x.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) to[i] += weight * from[i] * from[i];
    });
  });
}

void square(TensorView x) {
  with_real(kEkfacScales, x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    T* data = x.data<T>();
    parallel_ranges(x.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) data[i] *= data[i];
    });
  });
}

TensorView product(Context& ctx, Scratch& scratch, Trans trans_a, ConstTensorView a,
                   ConstTensorView b) {
  const TensorView c =
      scratch.take({trans_a == Trans::yes ? a.dim(1) : a.dim(0), b.dim(1)}, a.dtype());
  ops::gemm(ctx, trans_a, Trans::no, 1, a, b, 0, c);
  return c;
}

}  // namespace

void add_ekfac_samples(Context& ctx, const EkfacBasis& basis, double alpha, std::int64_t count,
                       TensorView a, TensorView g, TensorView scales) {
  const std::int64_t positions = a.dim(0) / std::max<std::int64_t>(1, count);
  Scratch scratch(ctx);
  if (positions == 1) {
    // The square of one outer product is the outer product of the squares.
    const TensorView projected_a = product(ctx, scratch, Trans::no, a, basis.a);
    const TensorView projected_g = product(ctx, scratch, Trans::no, g, basis.g);
    square(projected_a);
    square(projected_g);
    return ops::gemm(ctx, Trans::yes, Trans::no, alpha, projected_g, projected_a, 1, scales);
  }
  const bool first = projects_first(positions, g.dim(1), a.dim(1));
  if (first) {
    a = product(ctx, scratch, Trans::no, a, basis.a);
    g = product(ctx, scratch, Trans::no, g, basis.g);
  }
  for (std::int64_t n = 0; n < count; ++n) {
    Scratch sample(ctx);
    TensorView dw = product(ctx, sample, Trans::yes, g.slice(0, n * positions, positions),
                            a.slice(0, n * positions, positions));
    if (!first) {
      dw = product(ctx, sample, Trans::no, dw, basis.a);
      dw = product(ctx, sample, Trans::yes, basis.g, dw);
    }
    add_squares(alpha, dw, scales);
  }
}

}  // namespace dkfac::kfac::cpu
