#include "core/shared/cuda/launch.cuh"
#include "nn/backends/backend_normalize.h"
#include "nn/backends/cuda/layer_norm_functors.h"

namespace dkfac::nn::cuda {
namespace {

template <class T>
NormalizedRows<T> normalized_rows(ConstTensorView x, ConstTensorView mean,
                                  ConstTensorView inv_std) {
  using C = Computed<T>;
  return {x.data<T>(), x.dim(1), mean.data<C>(), inv_std.data<C>()};
}

}  // namespace

void normalize_rows(Context& ctx, double epsilon, ConstTensorView x, ConstTensorView gamma,
                    ConstTensorView beta, TensorView mean, TensorView inv_std, TensorView y) {
  const std::int64_t rows = x.dim(0), channels = x.dim(1);
  visit_floating(x.dtype(), [&]<class T>(Type<T>) {
    using C = Computed<T>;
    dkfac::cuda::reduce_rows<SumPair>(
        ctx, rows, channels, AddPairs{}, RowMomentTerm<T>{x.data<T>(), channels},
        StoreRowMoments<T>{x.data<T>(), channels, epsilon, mean.data<C>(), inv_std.data<C>()});
    dkfac::cuda::for_each_2d(ctx.stream(), rows, channels,
                             NormalizeRow<T>{normalized_rows<T>(x, mean, inv_std), gamma.data<C>(),
                                             beta.data<C>(), y.data<T>()});
  });
}

void row_norm_gradients(Context& ctx, ConstTensorView x, ConstTensorView mean,
                        ConstTensorView inv_std, ConstTensorView dy, TensorView scale_grad,
                        TensorView shift_grad) {
  visit_floating(x.dtype(), [&]<class T>(Type<T>) {
    using C = Computed<T>;
    dkfac::cuda::reduce_cols<SumPair>(
        ctx, x.dim(1), x.dim(0), AddPairs{},
        ChannelGradientTerm<T>{normalized_rows<T>(x, mean, inv_std), dy.data<T>()},
        StoreChannelGradients<C>{scale_grad.data<C>(), shift_grad.data<C>()});
  });
}

void normalize_rows_backward(Context& ctx, ConstTensorView x, ConstTensorView gamma,
                             ConstTensorView mean, ConstTensorView inv_std, ConstTensorView dy,
                             TensorView dx) {
  const std::int64_t rows = x.dim(0), channels = x.dim(1);
  if (rows == 0) return;
  Scratch scratch(ctx);
  auto* sums = static_cast<SumPair*>(scratch.take(Shape{rows, 2}, DType::f64).raw());
  visit_floating(x.dtype(), [&]<class T>(Type<T>) {
    const RowGradientTerm<T> terms{normalized_rows<T>(x, mean, inv_std), gamma.data<Computed<T>>(),
                                   dy.data<T>()};
    dkfac::cuda::reduce_rows<SumPair>(ctx, rows, channels, AddPairs{}, terms,
                                      StoreEach<SumPair>{sums});
    dkfac::cuda::for_each_2d(ctx.stream(), rows, channels,
                             NormalizeRowBackward<T>{terms, sums, dx.data<T>()});
  });
}

}  // namespace dkfac::nn::cuda
