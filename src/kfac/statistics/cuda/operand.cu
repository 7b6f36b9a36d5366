#include <cstdint>

#include "core/shared/cuda/launch.cuh"
#include "kfac/statistics/cuda/operand.h"
#include "kfac/statistics/cuda/operand_functors.h"

namespace dkfac::kfac::cuda {
namespace {

float* scalar(TensorView x) { return x.empty() ? nullptr : x.data<float>(); }

template <class T>
bool is_aligned(const T* data) {
  return reinterpret_cast<std::uintptr_t>(data) % alignof(Pack<T>) == 0;
}

/// Applies f to x and writes the results to `to` unless it is null.
template <class S, class D, class F>
void visit(Context& ctx, ConstTensorView x, D* to, F f, StoreRange store) {
  const S* from = x.data<S>();
  const std::int64_t numel = x.numel();
  const bool gaps = !x.is_contiguous();
  if (!gaps && is_aligned(from) && is_aligned(to)) {
    const EachPack<S, D, F> each{from, to, numel, f};
    return dkfac::cuda::reduce_rows<OperandRange>(ctx, 1, (numel + kPackSize - 1) / kPackSize,
                                                  JoinRanges{}, each, store);
  }
  const EachStrided<S, D, F> each{from, to, gaps ? x.dim(1) : numel, gaps ? x.stride(0) : numel, f};
  dkfac::cuda::reduce_rows<OperandRange>(ctx, 1, numel, JoinRanges{}, each, store);
}

template <class F>
void visit_half(DType dtype, F&& f) {
  if (dtype == DType::f16) return f(element::Type<f16>{});
  f(element::Type<bf16>{});
}

}  // namespace

void round_operand(Context& ctx, double scale, ConstTensorView x, OperandStats stats,
                   TensorView to) {
  const StoreRange store{scalar(stats.max_abs), scalar(stats.underflow)};
  element::visit_floating(x.dtype(), [&]<class S>(element::Type<S>) {
    visit_half(to.dtype(), [&]<class D>(element::Type<D>) {
      const RoundElement<S, D> round{static_cast<float>(scale)};
      visit<S, D>(ctx, x, to.data<D>(), round, store);
    });
  });
}

void find_range(Context& ctx, ConstTensorView x, TensorView max_abs) {
  visit_half(x.dtype(), [&]<class S>(element::Type<S>) {
    visit<S, S>(ctx, x, static_cast<S*>(nullptr), KeepElement<S>{},
                StoreRange{scalar(max_abs), nullptr});
  });
}

}  // namespace dkfac::kfac::cuda
