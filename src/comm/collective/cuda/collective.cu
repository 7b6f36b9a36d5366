#include "comm/collective/backend_collective.h"
#include "comm/collective/cuda/collective_functors.h"
#include "core/shared/cuda/launch.cuh"

namespace dkfac::comm::cuda {

using dkfac::cuda::for_each;

void raise_flag(Context& ctx, ConstTensorView count, TensorView flag) {
  for_each(ctx.stream(), 1, RaiseFlag{count.data<float>(), flag.data<double>()});
}

void raise_nonfinite(Context& ctx, ConstTensorView value, TensorView flag) {
  for_each(ctx.stream(), 1, RaiseNonfinite{value.data<double>(), flag.data<double>()});
}

void count_past(Context& ctx, double scale, double limit, ConstTensorView largest,
                TensorView count) {
  for_each(ctx.stream(), 1, CountPast{scale, limit, largest.data<float>(), count.data<float>()});
}

}  // namespace dkfac::comm::cuda
