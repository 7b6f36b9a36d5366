#include "dkfac/core/ops.h"

#include "core/shared/cuda/batched.h"
#include "core/shared/cuda/launch.cuh"
#include "core/shared/host.h"
#include "kfac/inverse/backend_inverse.h"
#include "kfac/inverse/cuda/precondition_functors.h"
#include "kfac/shared/array_functors.h"

namespace dkfac::kfac::cuda {

using dkfac::cuda::for_each;
using dkfac::cuda::for_each_2d;

void divide_by_products(Context& ctx, TensorView x, ConstTensorView rows, ConstTensorView columns,
                        const AppliedDamping& damping) {
  with_real("precondition eigen", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    for_each_2d(
        ctx.stream(), x.dim(0), x.dim(1),
        DivideByProducts<T>{x.data<T>(), x.stride(0), rows.data<T>(), columns.data<T>(), damping});
  });
}

void divide_by_scales(Context& ctx, TensorView x, ConstTensorView scales,
                      const AppliedDamping& damping) {
  with_real("precondition eigen", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    for_each_2d(ctx.stream(), x.dim(0), x.dim(1),
                DivideByScales<T>{x.data<T>(), x.stride(0), scales.data<T>(), x.dim(1), damping});
  });
}

void divide(Context& ctx, TensorView x, ConstTensorView by) {
  with_real("precondition", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    for_each_2d(ctx.stream(), x.dim(0), x.dim(1),
                Divide<T>{x.data<T>(), x.stride(0), by.data<double>()});
  });
}

void solve_norms(Context& ctx, NormFisher mode, std::span<const NormGradient> norms) {
  if (norms.empty()) return;
  with_real("precondition batch norm", norms.front().fisher.dtype(), [&](auto zero) {
    using T = decltype(zero);
    static_assert(sizeof(SolveNorms<T>) + sizeof(std::int64_t) <= 4096, "arguments of a kernel");
    SolveNorms<T> some{};
    const auto launch = [&] {
      for_each(ctx.stream(), some.channels(), some);
      some.count = 0;
    };
    for (const NormGradient& norm : norms) {
      some.add(norm.beta.numel(), solve_norm<T>(mode, norm));
      if (some.count == SolveNorms<T>::kMost) launch();
    }
    launch();
  });
}

void apply_groups(Context& ctx, ConstTensorView a, ConstTensorView g, TensorView weight,
                  TensorView bias) {
  using ops::Trans;
  const std::int64_t groups = a.dim(0), d = a.dim(1), out = g.dim(1), width = weight.dim(1);
  Scratch scratch(ctx);
  const TensorView product = scratch.take_aligned({groups, out, d}, weight.dtype());
  const auto left = [&](ConstTensorView x, std::int64_t first, std::int64_t columns) {
    dkfac::cuda::gemm_batched(ctx, Trans::no, Trans::no, 1, g, x.reshape({groups, out, columns}), 0,
                              product.slice(2, first, columns));
  };
  const auto right = [&](std::int64_t first, std::int64_t columns, TensorView x) {
    dkfac::cuda::gemm_batched(ctx, Trans::no, Trans::no, 1, product, a.slice(2, first, columns), 0,
                              x.reshape({groups, out, columns}));
  };
  left(weight, 0, width);
  if (!bias.empty()) left(bias, width, 1);
  right(0, width, weight);
  if (!bias.empty()) right(width, 1, bias);
}

}  // namespace dkfac::kfac::cuda
