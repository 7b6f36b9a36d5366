#include "core/shared/cuda/launch.cuh"
#include "core/shared/host.h"
#include "kfac/inverse/average_functors.h"

namespace dkfac::kfac::cuda {

void begin_parts(Context& ctx, const AverageParts& parts, double value, ConstTensorView statistic,
                 TensorView average) {
  const std::int64_t count = parts.count(average.numel());
  Scratch scratch(ctx);
  double* const starts = scratch.take({count}, DType::f64).data<double>();
  with_real("begin average", average.dtype(), [&](auto zero) {
    using T = decltype(zero);
    dkfac::cuda::reduce_rows<PartSums>(
        ctx, count, parts.length, dkfac::cuda::Sum<PartSums>{},
        PartDiagonal<T>{parts, statistic.data<T>(), average.data<T>()},
        StoreStart{parts, value, starts});
    dkfac::cuda::for_each(ctx.stream(), count * parts.length,
                          WriteStart<T>{parts, starts, average.data<T>()});
  });
}

}  // namespace dkfac::kfac::cuda
