#include "dkfac/core/cuda/launch.cuh"

#include "kfac/backend_statistics.h"
#include "kfac/cuda/merge_functors.h"
#include "kfac/host.h"

namespace dkfac::kfac::cuda {

bool merge_average(Context& ctx, const MergeRule& rule, ConstTensorView statistic,
                   TensorView average, TensorView status) {
  Scratch scratch(ctx);
  std::int32_t* refused = scratch.take({1}, DType::i32).data<std::int32_t>();
  const StoreVerdict verdict{refused, status.data<std::int32_t>()};
  with_real("merge", average.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* from = statistic.data<T>();
    const std::int64_t numel = average.numel();
    const std::int64_t terms = rule.test == FiniteTest::traces ? rule.groups * rule.dim : numel;
    const FiniteTerm<T> term{from, rule.test, rule.dim};
    dkfac::cuda::reduce_rows<double>(ctx, 1, terms, dkfac::cuda::Sum<double>{}, term, verdict);
    const MergeElement<T> merge{from, average.data<T>(), refused, static_cast<T>(rule.weight),
                                static_cast<T>(1 - rule.weight)};
    dkfac::cuda::for_each(ctx.stream(), numel, merge);
  });
  return true;
}

}  // namespace dkfac::kfac::cuda
