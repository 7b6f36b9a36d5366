#include "dkfac/core/ops.h"

#include "core/shared/cuda/launch.cuh"
#include "core/shared/host.h"
#include "kfac/precondition/backend_length.h"
#include "kfac/precondition/cuda/length_functors.h"

namespace dkfac::kfac::cuda {

void keep_gradient(Context& ctx, ConstTensorView v, TensorView copy, TensorView vv) {
  ops::copy(ctx, v, copy);
  ops::dot(ctx, v, v, vv);
}

void length_products(Context& ctx, ConstTensorView v, ConstTensorView u, TensorView products) {
  ops::dot(ctx, u, u, products.slice(0, 0, 1));
  ops::dot(ctx, u, v, products.slice(0, 1, 1));
}

void set_length_factors(Context& ctx, StepLength rule, ConstTensorView products,
                        ConstTensorView before, TensorView lengths, TensorView factors) {
  dkfac::cuda::for_each(ctx.stream(), 1,
                        SetLengthFactors{rule, products.data<double>(), before.data<double>(),
                                         lengths.data<double>(), factors.data<double>()});
}

void set_length(Context& ctx, ConstTensorView factors, ConstTensorView v, TensorView u) {
  with_real("step length", u.dtype(), [&](auto zero) {
    using T = decltype(zero);
    dkfac::cuda::for_each(ctx.stream(), u.numel(),
                          SetLength<T>{factors.data<double>(), v.data<T>(), u.data<T>()});
  });
}

}  // namespace dkfac::kfac::cuda
