#pragma once

#include "core/cuda/map_functors.h"
#include "core/shared/cuda/launch.cuh"

namespace dkfac::cuda {

/// Calls visit(functor) with the functor of map_functors.h for the views.
template <class S, class D, class F, class Visit>
void with_mapping(ConstTensorView src, TensorView dst, F f, Visit&& visit) {
  const auto plan = detail::plan_rows(src, dst);
  const S* s = src.data<S>();
  D* d = dst.data<D>();
  if (plan.unit() && plan.extent[kMaxDims - 1] == plan.total) {
    constexpr std::size_t kWidth = kCommonPack<S, D>;
    const bool aligned = is_aligned<S, kWidth>(s) && is_aligned<D, kWidth>(d);
    return visit(MapPacked<S, D, F>{s, d, plan.total, aligned, f});
  }
  visit(MapRows<S, D, F>{s, d, plan, f});
}

template <class S, class D, class F>
void map(Context& ctx, ConstTensorView src, TensorView dst, F f) {
  with_mapping<S, D>(src, dst, f, [&]<class M>(M mapping) {
    if constexpr (std::is_same_v<M, MapRows<S, D, F>>) {
      // Long rows avoid the division of an element number.
      constexpr std::int64_t kLong = 128;
      const std::int64_t inner = mapping.plan.extent[kMaxDims - 1];
      if (inner >= kLong)
        return for_each_2d(ctx.stream(), mapping.plan.total / inner, inner, mapping);
    }
    for_each(ctx.stream(), mapping.size(), mapping);
  });
}

}  // namespace dkfac::cuda
