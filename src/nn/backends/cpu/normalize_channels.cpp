#include "nn/backends/cuda/normalize_channels.h"

#include "nn/backends/backend_normalize.h"
#include "nn/backends/dtype.h"

/// The arithmetic of one channel is in normalize_channels.h, shared by all backends.
namespace dkfac::nn::cpu {

void moments_from_sums(Context&, const NormShape& s, ConstTensorView sum,
                       ConstTensorView sum_of_squares, TensorView mean, TensorView rest,
                       TensorView variance) {
  visit_computing(mean.dtype(), [&]<class T>(Type<T>) {
    const MomentsFromSums<T> moments(s, sum, sum_of_squares, mean, rest, variance);
    for (std::int64_t k = 0; k < s.groups * s.channels; ++k) moments(k);
  });
}

void pack_moments(Context&, const NormShape& s, const Mean& mean, ConstTensorView variance,
                  TensorView to) {
  visit_computing(mean.mean.dtype(), [&]<class T>(Type<T>) {
    const PackMoments<T> pack(s, mean, variance, to);
    for (std::int64_t c = 0; c < s.channels; ++c) pack(c);
  });
}

void combine_moments(Context&, const NormShape& s, ConstTensorView packed, TensorView mean,
                     TensorView rest, TensorView variance) {
  visit_computing(mean.dtype(), [&]<class T>(Type<T>) {
    const CombineMoments<T> combine(s, packed, mean, rest, variance);
    for (std::int64_t c = 0; c < s.channels; ++c) combine(c);
  });
}

void finish_moments(Context&, const NormShape& s, ConstTensorView variance,
                    const NormChannels& channels, const NormMoments& out) {
  visit_computing(out.mean.dtype(), [&]<class T>(Type<T>) {
    const FinishMoments<T> finish(s, variance, channels, out);
    for (std::int64_t c = 0; c < s.channels; ++c) finish(c);
  });
}

void running_factors(Context&, const NormChannels& channels, TensorView factor, TensorView rest) {
  visit_computing(factor.dtype(), [&]<class T>(Type<T>) {
    const RunningFactor<T> running(channels, factor, rest);
    for (std::int64_t c = 0; c < factor.numel(); ++c) running(c);
  });
}

void train_moments(Context& ctx, const NormShape& s, ConstTensorView x,
                   const NormChannels& channels, const NormMoments& out) {
  Scratch scratch(ctx);
  const TensorView variance = scratch.take(Shape{s.groups, s.channels}, DType::f64);
  batch_moments(ctx, s, x, out.mean, out.rest, variance);
  finish_moments(ctx, s, variance, channels, out);
}

void train_moments_from_sums(Context& ctx, const NormShape& s, ConstTensorView sum,
                             ConstTensorView sum_of_squares, const NormChannels& channels,
                             const NormMoments& out) {
  Scratch scratch(ctx);
  const TensorView variance = scratch.take(Shape{s.groups, s.channels}, DType::f64);
  moments_from_sums(ctx, s, sum, sum_of_squares, out.mean, out.rest, variance);
  finish_moments(ctx, s, variance, channels, out);
}

void sums_of_gradients(Context&, const NormShape& s, ConstTensorView scale_grad,
                       ConstTensorView shift_grad, ConstTensorView inv_std, TensorView sum_g,
                       TensorView sum_g_centered) {
  visit_computing(inv_std.dtype(), [&]<class T>(Type<T>) {
    const SumsOfGradients<T> sums(scale_grad, shift_grad, inv_std, sum_g, sum_g_centered);
    for (std::int64_t c = 0; c < s.channels; ++c) sums(c);
  });
}

void norm_gradients(Context&, const NormShape& s, ConstTensorView gamma, ConstTensorView inv_std,
                    ConstTensorView sum_g, ConstTensorView sum_g_centered, TensorView scale_grad,
                    TensorView shift_grad, const NormCoefficients& to) {
  visit_computing(inv_std.dtype(), [&]<class T>(Type<T>) {
    const NormGradients<T> gradients(s, gamma, inv_std, sum_g, sum_g_centered, scale_grad,
                                     shift_grad, to);
    for (std::int64_t c = 0; c < s.channels; ++c) gradients(c);
  });
}

void train_gradients(Context& ctx, const NormShape& s, ConstTensorView x, const Affine& affine,
                     const OutputGrad& grad, TensorView masked, ConstTensorView gamma,
                     ConstTensorView inv_std, const ChannelGradients& out) {
  gradient_sums(ctx, s, x, affine, grad, masked, out.sum_g, out.sum_g_centered);
  norm_gradients(ctx, s, gamma, inv_std, out.sum_g, out.sum_g_centered, out.scale_grad,
                 out.shift_grad, out.to);
}

void gradients_from_sums(Context& ctx, const NormShape& s, ConstTensorView scale_grad,
                         ConstTensorView shift_grad, ConstTensorView gamma, ConstTensorView inv_std,
                         const ChannelGradients& out) {
  sums_of_gradients(ctx, s, scale_grad, shift_grad, inv_std, out.sum_g, out.sum_g_centered);
  norm_gradients(ctx, s, gamma, inv_std, out.sum_g, out.sum_g_centered, out.scale_grad,
                 out.shift_grad, out.to);
}

}  // namespace dkfac::nn::cpu
