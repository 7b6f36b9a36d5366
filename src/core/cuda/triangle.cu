#include "core/backend.h"
#include "core/cuda/elementwise_functors.h"
#include "core/cuda/reduce_functors.h"
#include "core/cuda/triangle_functors.h"
#include "core/shared/cuda/launch.cuh"
#include "core/shared/element.h"

namespace dkfac::cuda {

using element::Type;
using element::visit_computing;

void pack_lower(Context& ctx, ConstTensorView a, TensorView packed, TensorView nonfinite) {
  visit_computing(a.dtype(), [&]<class T>(Type<T>) {
    const Fold fold{a.dim(0)};
    const PackLower<T> pack{fold, a.data<T>(), a.stride(0), packed.data<T>()};
    if (nonfinite.empty()) return for_each_2d(ctx.stream(), fold.rows(), fold.cols(), pack);
    reduce_rows<std::int64_t>(ctx, 1, fold.rows() * fold.cols(), Sum<std::int64_t>{},
                              PackAndCount<T>{pack}, AddCount{nonfinite.data<float>()});
  });
}

void unpack_lower(Context& ctx, ConstTensorView packed, TensorView a, ops::Upper upper) {
  visit_computing(a.dtype(), [&]<class T>(Type<T>) {
    const std::int64_t d = a.dim(0);
    const T* from = packed.data<T>();
    T* to = a.data<T>();
    const Fold fold{d};
    for_each_2d(ctx.stream(), fold.rows(), fold.cols(),
                UnpackLower<T>{fold, from, to, a.stride(0)});
    if (upper == ops::Upper::filled)
      for_each_transposed<T>(ctx.stream(), d, d, LoadStrictlyLower<T>{from},
                             StoreStrictlyUpper<T>{to, a.stride(0)});
  });
}

void packed_trace(Context& ctx, ConstTensorView packed, std::int64_t d, TensorView out) {
  visit_computing(packed.dtype(), [&]<class T>(Type<T>) {
    visit_computing(out.dtype(), [&]<class O>(Type<O>) {
      reduce_rows<double>(ctx, 1, d, Sum<double>{}, PackedDiagonal<T>{packed.data<T>()},
                          StoreResult<O>{out.data<O>()});
    });
  });
}

}  // namespace dkfac::cuda
