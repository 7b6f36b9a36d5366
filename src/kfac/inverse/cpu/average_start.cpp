#include "core/shared/host.h"
#include "kfac/inverse/average_functors.h"

namespace dkfac::kfac::cpu {

void begin_parts(Context& ctx, const AverageParts& parts, double value, ConstTensorView statistic,
                 TensorView average) {
  const std::int64_t count = parts.count(average.numel());
  Scratch scratch(ctx);
  double* const starts = scratch.take({count}, DType::f64).data<double>();
  with_real("begin average", average.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const PartDiagonal<T> diagonal{parts, statistic.data<T>(), average.data<T>()};
    const StoreStart store{parts, value, starts};
    const WriteStart<T> write{parts, starts, average.data<T>()};
    for (std::int64_t part = 0; part < count; ++part) {
      PartSums sums{};
      for (std::int64_t k = 0; k < parts.length; ++k) sums = sums + diagonal(part, k);
      store(part, sums);
    }
    for (std::int64_t k = 0; k < count * parts.length; ++k) write(k);
  });
}

}  // namespace dkfac::kfac::cpu
