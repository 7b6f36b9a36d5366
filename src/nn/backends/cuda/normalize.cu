#include "core/shared/cuda/launch.cuh"
#include "nn/backends/backend_normalize.h"
#include "nn/backends/cuda/columns.cuh"
#include "nn/backends/cuda/each.cuh"
#include "nn/backends/cuda/normalize_backward_functors.h"
#include "nn/backends/cuda/normalize_channels.h"
#include "nn/backends/cuda/normalize_functors.h"

namespace dkfac::nn::cuda {
namespace {

using dkfac::cuda::for_each;

/// Channels side by side where few sums remain to be added.
constexpr std::int64_t kFewLanes = 8;

/// Calls out(group, 0, channel, Sums<2>) with the sums of run() over packs of W channels; blocks
/// form partial sums first.
template <std::size_t W, class Run, class Out>
void sum_pairs(Context& ctx, const NormShape& s, Run run, Out out) {
  const auto blocks = ColumnBlocks::parts(s.groups, s.rows, s.channels / kWidth<W>);
  Scratch scratch(ctx);
  double* pairs =
      scratch.take(Shape{s.groups, blocks.chunks, s.channels, 2}, DType::f64).data<double>();
  sum_columns<2 * W>(ctx.stream(), blocks, run, StorePairs<W>{pairs, blocks.chunks, s.channels});
  sum_columns<2>(ctx.stream(), ColumnBlocks::whole(s.groups, blocks.chunks, s.channels, kFewLanes),
                 PairRows{pairs, blocks.chunks, s.channels}, out);
}

template <class T>
const T* data_or_null(ConstTensorView x) {
  return x.empty() ? nullptr : x.data<T>();
}

template <class T>
FinishSums<T> finish_sums(const NormShape& s, ConstTensorView x, TensorView mean, TensorView rest,
                          TensorView variance) {
  using C = Computed<T>;
  return {x.data<T>(), s.rows, s.channels, mean.data<C>(), rest.data<C>(), variance.data<double>()};
}

template <class T, class Finish>
void sum_moments(Context& ctx, const NormShape& s, const T* x, Finish finish) {
  with_width<T>(s.channels, are_aligned(x), [&]<std::size_t W>(Width<W>) {
    sum_pairs<W>(ctx, s, MomentRows<T, W>{x, s.rows, s.channels}, finish);
  });
}

/// Calls visit(GradientRows<T, W>) for the type of x and the width of its packs.
template <class Visit>
void with_gradient_rows(const NormShape& s, ConstTensorView x, const Affine& affine,
                        const OutputGrad& grad, TensorView masked, Visit visit) {
  visit_floating(x.dtype(), [&]<class T>(Type<T>) {
    const T* from = x.data<T>();
    T* kept = masked.empty() ? nullptr : masked.data<T>();
    const GradientReader<T> reader(grad);
    const bool aligned = are_aligned(from, kept, reader.dy, reader.y, reader.addend);
    with_width<T>(s.channels, aligned, [&]<std::size_t W>(Width<W>) {
      visit(GradientRows<T, W>{from, s.rows, s.channels, AffineValues<Computed<T>>(affine), reader,
                               kept});
    });
  });
}

/// Calls finish(Type<C>)(group, 0, channel, Sums<2>) with the sums of train_gradients(), C being
/// the type that x is computed in.
template <class Finish>
void sum_gradients(Context& ctx, const NormShape& s, ConstTensorView x, const Affine& affine,
                   const OutputGrad& grad, TensorView masked, Finish finish) {
  with_gradient_rows(s, x, affine, grad, masked,
                     [&]<class T, std::size_t W>(const GradientRows<T, W>& rows) {
                       sum_pairs<W>(ctx, s, rows, finish(Type<Computed<T>>{}));
                     });
}

/// The same, by way of of_samples of train_gradients_by_sample().
template <class Finish>
void sum_sample_gradients(Context& ctx, const NormShape& s, ConstTensorView x, const Affine& affine,
                          const OutputGrad& grad, TensorView masked, ConstTensorView inv_std,
                          TensorView of_samples, Finish finish) {
  const std::int64_t samples = of_samples.dim(0), per_group = samples / s.groups;
  const NormShape sample{samples, s.rows / per_group, s.channels};
  const auto sum = [&]<class T, std::size_t W>(const GradientRows<T, W>& rows) {
    using C = Computed<T>;
    const SampleGradientRows<T, W> run{rows, sample.rows, per_group};
    C* to = of_samples.data<C>();
    const C* inverse = inv_std.data<C>();
    const auto blocks = ColumnBlocks::parts(samples, sample.rows, s.channels / kWidth<W>);
    if (blocks.chunks == 1) {
      sum_columns<2 * W>(ctx.stream(), blocks, run,
                         StoreSampleGradients<C, W>{to, inverse, s.channels, per_group});
    } else {
      sum_pairs<W>(ctx, sample, run,
                   StoreSampleGradients<C, 1>{to, inverse, s.channels, per_group});
    }
    sum_columns<2>(ctx.stream(), ColumnBlocks::whole(s.groups, per_group, s.channels, kFewLanes),
                   SampleRows<C>{to, inverse, s.channels, per_group}, finish(Type<C>{}));
  };
  with_gradient_rows(s, x, affine, grad, masked, sum);
}

/// Computes what follows from the sums that sum(finish) passes to `finish`, as sum_gradients()
/// does.
template <class Sum>
void finish_gradients(Context& ctx, const NormShape& s, ConstTensorView gamma,
                      ConstTensorView inv_std, const ChannelGradients& out, Sum sum) {
  const StoreTwo store{out.sum_g.data<double>(), out.sum_g_centered.data<double>(), s.channels};
  if (s.groups > 1) {  // The gradients of scale and shift need the sums of all groups.
    sum([&]<class C>(Type<C>) { return store; });
    return norm_gradients(ctx, s, gamma, inv_std, out.sum_g, out.sum_g_centered, out.scale_grad,
                          out.shift_grad, out.to);
  }
  sum([&]<class C>(Type<C>) {
    return StoreGradients<C>{store, gradients_of<C>(s, gamma, inv_std, out)};
  });
}

}  // namespace

#include "nn/backends/channel_kernels.inc"

void batch_moments(Context& ctx, const NormShape& s, ConstTensorView x, TensorView mean,
                   TensorView rest, TensorView variance) {
  visit_floating(x.dtype(), [&]<class T>(Type<T>) {
    sum_moments(ctx, s, x.data<T>(), finish_sums<T>(s, x, mean, rest, variance));
  });
}

void train_moments(Context& ctx, const NormShape& s, ConstTensorView x,
                   const NormChannels& channels, const NormMoments& out) {
  Scratch scratch(ctx);
  const TensorView variance = scratch.take(Shape{s.groups, s.channels}, DType::f64);
  if (s.groups > 1) {  // Running statistics need the moments of all groups.
    batch_moments(ctx, s, x, out.mean, out.rest, variance);
    return finish_moments(ctx, s, variance, channels, out);
  }
  visit_floating(x.dtype(), [&]<class T>(Type<T>) {
    const FinishMoments<Computed<T>> moments(s, variance, channels, out);
    sum_moments(ctx, s, x.data<T>(),
                FinishGroup<T>{finish_sums<T>(s, x, out.mean, out.rest, variance), moments});
  });
}

void normalize(Context& ctx, const NormShape& s, ConstTensorView x, const Affine& affine,
               ConstTensorView addend, const Activation& activation, TensorView y,
               TensorView signs) {
  DKFAC_CHECK(signs.empty() || has_signs(ctx, s, {x, addend, y}),
              "[batch_norm] signs of an output are wanted whose memory or ", s.channels,
              " channels have no whole packs; ask has_signs() first");
  visit_floating(x.dtype(), [&]<class T>(Type<T>) {
    using C = Computed<T>;
    const T *from = x.data<T>(), *plus = data_or_null<T>(addend);
    T* to = y.data<T>();
    with_width<T>(s.channels, are_aligned(from, plus, to), [&]<std::size_t W>(Width<W>) {
      const ColumnShares shares(s.groups, s.rows, s.channels / kWidth<W>);
      for_each(ctx.stream(), shares.threads(),
               Normalize<T, W>{shares, from, plus, to, AffineValues<C>(affine), activation.kind,
                               celu_of<C>(activation), static_cast<std::uint8_t*>(signs.raw())});
    });
  });
}

void train_gradients(Context& ctx, const NormShape& s, ConstTensorView x, const Affine& affine,
                     const OutputGrad& grad, TensorView masked, ConstTensorView gamma,
                     ConstTensorView inv_std, const ChannelGradients& out) {
  finish_gradients(ctx, s, gamma, inv_std, out,
                   [&](auto finish) { sum_gradients(ctx, s, x, affine, grad, masked, finish); });
}

void train_gradients_by_sample(Context& ctx, const NormShape& s, ConstTensorView x,
                               const Affine& affine, const OutputGrad& grad, TensorView masked,
                               ConstTensorView gamma, ConstTensorView inv_std,
                               const ChannelGradients& out, TensorView of_samples) {
  finish_gradients(ctx, s, gamma, inv_std, out, [&](auto finish) {
    sum_sample_gradients(ctx, s, x, affine, grad, masked, inv_std, of_samples, finish);
  });
}

void normalize_backward(Context& ctx, const NormShape& s, ConstTensorView x, const Affine& affine,
                        const OutputGrad& grad, const GradCoefficients& k, TensorView dx) {
  visit_floating(x.dtype(), [&]<class T>(Type<T>) {
    using C = Computed<T>;
    const T* from = x.data<T>();
    T* to = dx.data<T>();
    const GradientReader<T> reader(grad);
    const C *a = k.a.data<C>(), *b = k.b.data<C>(), *c = k.c.data<C>();
    const bool aligned = are_aligned(from, to, reader.dy, reader.y);
    with_width<T>(s.channels, aligned, [&]<std::size_t W>(Width<W>) {
      const ColumnShares shares(s.groups, s.rows, s.channels / kWidth<W>);
      for_each(ctx.stream(), shares.threads(),
               NormalizeBackward<T, W>{shares, from, to, AffineValues<C>(affine), reader, a, b, c,
                                       are_aligned(a, b, c)});
    });
  });
}

}  // namespace dkfac::nn::cuda
