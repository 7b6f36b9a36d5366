#include "core/backend.h"
#include "core/cuda/elementwise_functors.h"
#include "core/cuda/reduce_functors.h"
#include "core/shared/cuda/launch.cuh"
#include "core/shared/element.h"

namespace dkfac::cuda {
namespace {

using element::Type;
using element::visit_computing;

/// Reduces f over x and y (the same view for an f of one element), to `out`.
template <class V, class T, class Op, class F, class Out>
void reduce(Context& ctx, ConstTensorView x, ConstTensorView y, Op op, F f, Out out) {
  const auto plan = dkfac::detail::plan_rows(x, y);
  const T *a = x.data<T>(), *b = y.data<T>();
  const bool aligned = plan.unit() && plan.extent[kMaxDims - 1] == plan.total &&
                       is_aligned<T, kPack<T>>(a) && is_aligned<T, kPack<T>>(b);
  const Terms<T, Op, F> terms{a, b, plan, aligned, op, f};
  reduce_rows<V>(ctx, 1, terms.size(), op, terms, out);
}

}  // namespace

void dot(Context& ctx, ConstTensorView x, ConstTensorView y, TensorView out) {
  visit_computing(x.dtype(), [&]<class T>(Type<T>) {
    visit_computing(out.dtype(), [&]<class O>(Type<O>) {
      reduce<double, T>(ctx, x, y, Sum<double>{}, Product{}, StoreResult<O>{out.data<O>()});
    });
  });
}

void sum(Context& ctx, ConstTensorView x, TensorView out) {
  visit_computing(x.dtype(), [&]<class T>(Type<T>) {
    visit_computing(out.dtype(), [&]<class O>(Type<O>) {
      reduce<double, T>(ctx, x, x, Sum<double>{}, AsDouble{}, StoreResult<O>{out.data<O>()});
    });
  });
}

void max_abs(Context& ctx, ConstTensorView x, TensorView out) {
  visit_computing(x.dtype(), [&]<class T>(Type<T>) {
    visit_computing(out.dtype(), [&]<class O>(Type<O>) {
      reduce<T, T>(ctx, x, x, Max<T>{}, Magnitude<T>{}, StoreLargest<O>{out.data<O>()});
    });
  });
}

void col_sum(Context& ctx, double alpha, ConstTensorView x, double beta, TensorView out) {
  visit_computing(x.dtype(), [&]<class T>(Type<T>) {
    reduce_cols<double>(ctx, x.dim(1), x.dim(0), Sum<double>{},
                        ColumnTerm<T>{x.data<T>(), x.stride(0)},
                        StoreColumn<T>{alpha, beta, out.data<T>(), out.stride(0)});
  });
}

void count_nonfinite(Context& ctx, ConstTensorView x, TensorView count) {
  visit_computing(x.dtype(), [&]<class T>(Type<T>) {
    reduce<std::int64_t, T>(ctx, x, x, Sum<std::int64_t>{}, IsBad{}, AddCount{count.data<float>()});
  });
}

}  // namespace dkfac::cuda
