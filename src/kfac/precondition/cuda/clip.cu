#include "core/shared/cuda/launch.cuh"
#include "core/shared/host.h"
#include "kfac/precondition/backend_clip.h"
#include "kfac/precondition/cuda/clip_functors.h"
#include "kfac/shared/array_functors.h"

namespace dkfac::kfac::cuda {

using dkfac::cuda::for_each;
using dkfac::cuda::reduce_rows;

void add_up(Context& ctx, ConstTensorView products, ConstTensorView scales, TensorView total) {
  reduce_rows<double>(ctx, 1, products.numel(), dkfac::cuda::Sum<double>{},
                      LoadProduct{products.data<double>(), scales.data<double>()},
                      Store<double>{total.data<double>()});
}

void find_kl_factor(Context& ctx, double kappa, double lr, ConstTensorView total,
                    TensorView factor) {
  for_each(ctx.stream(), 1, KlFactor{kappa, lr, total.data<double>(), factor.data<double>()});
}

void scale_direction(Context& ctx, ConstTensorView factor, TensorView u) {
  with_real("kl clip", u.dtype(), [&](auto zero) {
    using T = decltype(zero);
    for_each(ctx.stream(), u.numel(), ScaleDirection<T>{factor.data<double>(), u.data<T>()});
  });
}

}  // namespace dkfac::kfac::cuda
