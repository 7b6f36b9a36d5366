#include <cstdint>
#include <type_traits>

#include "core/shared/cuda/launch.cuh"
#include "nn/backends/backend_pool.h"
#include "nn/backends/cuda/columns.cuh"
#include "nn/backends/cuda/pool_functors.h"

namespace dkfac::nn::cuda {
namespace {

using dkfac::cuda::for_each;

/// Calls visit(Type<T>, Width<W>) with the widest W in which two tensors of one dtype, and
/// positions and an addend if any, can be moved.
template <class Visit>
void visit_packs(ConstTensorView a, ConstTensorView b, const void* place, std::int64_t channels,
                 Visit&& visit, const void* addend = nullptr) {
  visit_floating(a.dtype(), [&]<class T>(Type<T> type) {
    const bool aligned = are_aligned(a.data<T>(), b.data<T>(), static_cast<const char*>(place),
                                     static_cast<const char*>(addend));
    with_width<T>(channels, aligned, [&]<std::size_t W>(Width<W> width) { visit(type, width); });
  });
}

/// Packs of W elements.
template <std::size_t W>
std::int64_t packs_in(ConstTensorView x) {
  return x.numel() / kWidth<W>;
}

/// Calls visit(positions of maxima) in the type that max_pool() stores.
template <class Void, class Visit>
void visit_places(const Context& ctx, const PoolShape& s, Void* place, Visit&& visit) {
  constexpr bool kConst = std::is_const_v<Void>;
  if (has_narrow_places(ctx.device(), s))
    return visit(static_cast<std::conditional_t<kConst, const std::uint8_t, std::uint8_t>*>(place));
  visit(static_cast<std::conditional_t<kConst, const std::int32_t, std::int32_t>*>(place));
}

}  // namespace

void max_pool(Context& ctx, const PoolShape& s, ConstTensorView x, TensorView y, TensorView place) {
  visit_packs(x, y, place.raw(), s.c, [&]<class T, std::size_t W>(Type<T>, Width<W>) {
    visit_places(ctx, s, place.raw(), [&](auto* to) {
      for_each(
          ctx.stream(), packs_in<W>(y),
          MaxPool<T, W, std::remove_reference_t<decltype(*to)>>{s, x.data<T>(), y.data<T>(), to});
    });
  });
}

void max_pool_backward(Context& ctx, const PoolShape& s, ConstTensorView dy, ConstTensorView addend,
                       ConstTensorView place, TensorView dx) {
  const auto run = [&]<class T, std::size_t W>(Type<T>, Width<W>) {
    const T* plus = addend.empty() ? nullptr : addend.data<T>();
    visit_places(ctx, s, place.raw(), [&](const auto* from) {
      for_each(ctx.stream(), packs_in<W>(dx),
               MaxPoolBackward<T, W, std::remove_cvref_t<decltype(*from)>>{s, dy.data<T>(), plus,
                                                                           from, dx.data<T>()});
    });
  };
  visit_packs(dy, dx, place.raw(), s.c, run, addend.raw());
}

void average_pool(Context& ctx, const PoolShape& s, ConstTensorView x, TensorView y) {
  visit_packs(x, y, nullptr, s.c, [&]<class T, std::size_t W>(Type<T>, Width<W>) {
    for_each(ctx.stream(), packs_in<W>(y), AveragePool<T, W>{s, x.data<T>(), y.data<T>()});
  });
}

void average_pool_backward(Context& ctx, const PoolShape& s, ConstTensorView dy, TensorView dx) {
  visit_packs(dy, dx, nullptr, s.c, [&]<class T, std::size_t W>(Type<T>, Width<W>) {
    for_each(ctx.stream(), packs_in<W>(dx),
             AveragePoolBackward<T, W>{s, dy.data<T>(), dx.data<T>()});
  });
}

void global_average(Context& ctx, const GlobalShape& s, ConstTensorView x, TensorView y) {
  visit_packs(x, y, nullptr, s.c, [&]<class T, std::size_t W>(Type<T>, Width<W>) {
    constexpr std::int64_t kLanes = 32;
    sum_columns<W>(ctx.stream(), ColumnBlocks::whole(s.n, s.positions, s.c / kWidth<W>, kLanes),
                   PositionRows<T, W>{x.data<T>(), s.positions, s.c},
                   StoreMeans<T, W>{y.data<T>(), s.positions, s.c});
  });
}

void global_average_backward(Context& ctx, const GlobalShape& s, ConstTensorView dy,
                             TensorView dx) {
  visit_packs(dy, dx, nullptr, s.c, [&]<class T, std::size_t W>(Type<T>, Width<W>) {
    for_each(ctx.stream(), packs_in<W>(dx),
             GlobalAverageBackward<T, W>{s.positions, s.c, dy.data<T>(), dx.data<T>()});
  });
}

void global_max(Context& ctx, const GlobalShape& s, ConstTensorView x, TensorView y,
                TensorView place) {
  visit_packs(x, y, place.raw(), s.c, [&]<class T, std::size_t W>(Type<T>, Width<W>) {
    for_each(
        ctx.stream(), packs_in<W>(y),
        GlobalMax<T, W>{s.positions, s.c, x.data<T>(), y.data<T>(), place.data<std::int32_t>()});
  });
}

void global_max_backward(Context& ctx, const GlobalShape& s, ConstTensorView dy,
                         ConstTensorView place, TensorView dx) {
  visit_packs(dy, dx, place.raw(), s.c, [&]<class T, std::size_t W>(Type<T>, Width<W>) {
    for_each(ctx.stream(), packs_in<W>(dx),
             GlobalMaxBackward<T, W>{s.positions, s.c, dy.data<T>(), place.data<std::int32_t>(),
                                     dx.data<T>()});
  });
}

void max_pool_tangent(Context& ctx, const PoolShape& s, ConstTensorView dx, ConstTensorView place,
                      TensorView dy) {
  visit_packs(dx, dy, place.raw(), s.c, [&]<class T, std::size_t W>(Type<T>, Width<W>) {
    visit_places(ctx, s, place.raw(), [&](const auto* from) {
      for_each(ctx.stream(), packs_in<W>(dy),
               MaxPoolTangent<T, W, std::remove_cvref_t<decltype(*from)>>{s, dx.data<T>(), from,
                                                                          dy.data<T>()});
    });
  });
}

void global_max_tangent(Context& ctx, const GlobalShape& s, ConstTensorView dx,
                        ConstTensorView place, TensorView dy) {
  visit_packs(dx, dy, place.raw(), s.c, [&]<class T, std::size_t W>(Type<T>, Width<W>) {
    for_each(ctx.stream(), packs_in<W>(dy),
             GlobalMaxTangent<T, W>{s.positions, s.c, dx.data<T>(), place.data<std::int32_t>(),
                                    dy.data<T>()});
  });
}

}  // namespace dkfac::nn::cuda
