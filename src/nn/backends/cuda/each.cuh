#pragma once

#include "core/shared/cuda/launch.cuh"

namespace dkfac::nn::cuda {

/// Calls f(i) for i in [0, count), as each() of the host, which needs to know the work.
template <class F>
void each(Context& ctx, std::int64_t count, std::int64_t /*work*/, const F& f) {
  dkfac::cuda::for_each(ctx.stream(), count, f);
}

}  // namespace dkfac::nn::cuda
