#include "core/shared/cuda/launch.cuh"
#include "core/shared/host.h"
#include "kfac/precondition/backend_length.h"
#include "kfac/precondition/cuda/length_functors.h"

namespace dkfac::kfac::cuda {

void set_length(Context& ctx, StepLength rule, ConstTensorView products, ConstTensorView v,
                TensorView u) {
  with_real("step length", u.dtype(), [&](auto zero) {
    using T = decltype(zero);
    dkfac::cuda::for_each(ctx.stream(), u.numel(),
                          SetLength<T>{rule, products.data<double>(), v.data<T>(), u.data<T>()});
  });
}

}  // namespace dkfac::kfac::cuda
