#include "core/backend.h"
#include "core/cuda/elementwise_functors.h"
#include "core/cuda/map.cuh"
#include "core/shared/element.h"

namespace dkfac::cuda {
namespace {

using element::Type;
using element::visit_any;
using element::visit_computing;
using element::visit_floating;

/// Runs map() and adds the counts of f to counter[0] (f32).
template <class T, class F>
void map_counting(Context& ctx, ConstTensorView src, TensorView dst, F f, TensorView counter) {
  with_mapping<T, T>(src, dst, f, [&](auto mapping) {
    reduce_rows<std::int64_t>(ctx, 1, mapping.size(), Sum<std::int64_t>{},
                              CountOf<decltype(mapping)>{mapping}, AddCount{counter.data<float>()});
  });
}

template <class S, class D>
void cast_values(Context& ctx, ConstTensorView src, TensorView dst, double scale) {
  if constexpr (std::is_same_v<S, D>) {
    if (scale == 1.0) return copy(ctx, src, dst);
  }
  if constexpr (!std::is_same_v<S, double>) {
    if (element::exact_in_f32<D>(scale))
      return map<S, D>(ctx, src, dst, ScaleTo<S, D, float>{static_cast<float>(scale)});
  }
  map<S, D>(ctx, src, dst, ScaleTo<S, D, double>{scale});
}

}  // namespace

void fill(Context& ctx, TensorView x, double value) {
  visit_any(x.dtype(),
            [&]<class T>(Type<T>) { map<T, T>(ctx, x, x, FillWith<T>{element::store<T>(value)}); });
}

void cast(Context& ctx, ConstTensorView src, TensorView dst, double scale) {
  visit_floating(src.dtype(), [&]<class S>(Type<S>) {
    visit_floating(dst.dtype(), [&]<class D>(Type<D>) { cast_values<S, D>(ctx, src, dst, scale); });
  });
}

void axpby(Context& ctx, double alpha, ConstTensorView x, double beta, TensorView y) {
  visit_computing(y.dtype(), [&]<class T>(Type<T>) {
    const auto a = static_cast<T>(alpha);
    if (beta == 0.0) return map<T, T>(ctx, x, y, ScaleTo<T, T, T>{a});
    map<T, T>(ctx, x, y, Axpby<T>{a, static_cast<T>(beta)});
  });
}

void copy_checked(Context& ctx, double scale, ConstTensorView src, TensorView dst,
                  TensorView nonfinite) {
  visit_computing(dst.dtype(), [&]<class T>(Type<T>) {
    map_counting<T>(ctx, src, dst, ScaleChecked<T>{static_cast<T>(scale)}, nonfinite);
  });
}

void round_to(Context& ctx, DType type, double scale, ConstTensorView src, TensorView dst,
              TensorView underflow) {
  visit_computing(dst.dtype(), [&]<class T>(Type<T>) {
    visit_floating(type, [&]<class R>(Type<R>) {
      map_counting<T>(ctx, src, dst, RoundTo<R, T>{static_cast<T>(scale)}, underflow);
    });
  });
}

}  // namespace dkfac::cuda
