#include "core/shared/cuda/launch.cuh"
#include "nn/backends/activate.h"
#include "nn/backends/backend_elementwise.h"
#include "nn/backends/cuda/columns.cuh"
#include "nn/backends/cuda/elementwise_functors.h"
#include "nn/backends/smooth.h"

namespace dkfac::nn::cuda {
namespace {

using dkfac::cuda::for_each;

/// y = f(x), or f(x, z).
template <class T, class F>
void map(Context& ctx, const T* x, const T* z, T* y, std::int64_t n, F f) {
  for_each(ctx.stream(), packs_of<T>(n), Map<T, F>{x, z, y, n, are_aligned(x, z, y), f});
}

/// visit_words() for two tensors of one dtype.
template <class Visit>
void move(ConstTensorView a, ConstTensorView b, std::int64_t counts, Visit&& visit) {
  visit_words(size_of(a.dtype()), addresses_of(a.raw(), b.raw()), counts, visit);
}

}  // namespace

#include "nn/backends/map_kernels.inc"

void repeat_row(Context& ctx, ConstTensorView row, TensorView y) {
  visit_floating(y.dtype(), [&]<class T>(Type<T>) {
    T* to = y.data<T>();
    for_each(ctx.stream(), packs_of<T>(y.numel()),
             RepeatRow<T>{row.data<Computed<T>>(), row.numel(), to, y.numel(), are_aligned(to)});
  });
}

void sum_rows(Context& ctx, ConstTensorView x, TensorView sums) {
  const std::int64_t c = sums.numel(), rows = x.numel() / c;
  visit_floating(x.dtype(), [&]<class T>(Type<T>) {
    const T* from = x.data<T>();
    const StoreSum<Computed<T>> store{sums.data<Computed<T>>()};
    with_width<T>(c, are_aligned(from), [&]<std::size_t W>(Width<W>) {
      const auto blocks = ColumnBlocks::parts(1, rows, c / kWidth<W>);
      Scratch scratch(ctx);
      double* parts = scratch.take(Shape{blocks.chunks, c}, DType::f64).data<double>();
      sum_columns<W>(ctx.stream(), blocks, ColumnSums<T, W>{from, c}, StoreParts<W>{parts, c});
      constexpr std::int64_t kLanes = 32;
      sum_columns<1>(ctx.stream(), ColumnBlocks::whole(1, blocks.chunks, c, kLanes),
                     ColumnSums<double, 1>{parts, c}, store);
    });
  });
}

void exchange(Context& ctx, TensorView a, TensorView b) {
  move(a, b, a.numel(), [&]<class W>(W, std::int64_t elements) {
    for_each(ctx.stream(), a.numel() / elements,
             BucketedReduce<W>{as_packs<W>(a.raw()), as_packs<W>(b.raw())});
  });
}

void pad_channels(Context& ctx, const PadShape& shape, ConstTensorView large, TensorView small) {
  move(large, small, shape.c | shape.small_c | shape.before,
       [&]<class W>(W, std::int64_t elements) {
         for_each(ctx.stream(), small.numel() / elements,
                  PadChannels<W>{in_words(shape, elements), as_packs<const W>(large.raw()),
                                 as_packs<W>(small.raw())});
       });
}

void pad_channels_backward(Context& ctx, const PadShape& shape, ConstTensorView small,
                           TensorView large) {
  move(large, small, shape.c | shape.small_c | shape.before,
       [&]<class W>(W, std::int64_t elements) {
         for_each(ctx.stream(), large.numel() / elements,
                  PadChannelsBackward<W>{in_words(shape, elements), as_packs<const W>(small.raw()),
                                         as_packs<W>(large.raw())});
       });
}

void flip_horizontal(Context& ctx, ConstTensorView x, TensorView flipped) {
  move(x, flipped, x.dim(3), [&]<class W>(W, std::int64_t elements) {
    for_each(ctx.stream(), x.numel() / elements,
             FlipLines<W>{as_packs<const W>(x.raw()), as_packs<W>(flipped.raw()), x.dim(2),
                          x.dim(3) / elements});
  });
}

}  // namespace dkfac::nn::cuda
