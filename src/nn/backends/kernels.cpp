#include "nn/backends/backend_elementwise.h"
#include "nn/backends/backend_normalize.h"
#include "nn/backends/backend_pool.h"

namespace dkfac::nn::kernels {

void repeat_row(Context& ctx, ConstTensorView row, TensorView y) {
  ctx.device().is_cuda() ? cuda::repeat_row(ctx, row, y) : cpu::repeat_row(ctx, row, y);
}

void sum_rows(Context& ctx, ConstTensorView x, TensorView sums) {
  ctx.device().is_cuda() ? cuda::sum_rows(ctx, x, sums) : cpu::sum_rows(ctx, x, sums);
}

void add(Context& ctx, ConstTensorView x, ConstTensorView z, TensorView y) {
  ctx.device().is_cuda() ? cuda::add(ctx, x, z, y) : cpu::add(ctx, x, z, y);
}

void scale(Context& ctx, ConstTensorView x, double factor, TensorView y) {
  ctx.device().is_cuda() ? cuda::scale(ctx, x, factor, y) : cpu::scale(ctx, x, factor, y);
}

void activate(Context& ctx, const Activation& activation, ConstTensorView x, TensorView y) {
  ctx.device().is_cuda() ? cuda::activate(ctx, activation, x, y)
                         : cpu::activate(ctx, activation, x, y);
}

void activate_backward(Context& ctx, const Activation& activation, ConstTensorView y,
                       ConstTensorView dy, TensorView dx) {
  ctx.device().is_cuda() ? cuda::activate_backward(ctx, activation, y, dy, dx)
                         : cpu::activate_backward(ctx, activation, y, dy, dx);
}

void mix(Context& ctx, double weight, ConstTensorView value, TensorView average) {
  ctx.device().is_cuda() ? cuda::mix(ctx, weight, value, average)
                         : cpu::mix(ctx, weight, value, average);
}

void exchange(Context& ctx, TensorView a, TensorView b) {
  ctx.device().is_cuda() ? cuda::exchange(ctx, a, b) : cpu::exchange(ctx, a, b);
}

void pad_channels(Context& ctx, const PadShape& shape, ConstTensorView large, TensorView small) {
  ctx.device().is_cuda() ? cuda::pad_channels(ctx, shape, large, small)
                         : cpu::pad_channels(ctx, shape, large, small);
}

void pad_channels_backward(Context& ctx, const PadShape& shape, ConstTensorView small,
                           TensorView large) {
  ctx.device().is_cuda() ? cuda::pad_channels_backward(ctx, shape, small, large)
                         : cpu::pad_channels_backward(ctx, shape, small, large);
}

void flip_horizontal(Context& ctx, ConstTensorView x, TensorView flipped) {
  ctx.device().is_cuda() ? cuda::flip_horizontal(ctx, x, flipped)
                         : cpu::flip_horizontal(ctx, x, flipped);
}

void max_pool(Context& ctx, const PoolShape& shape, ConstTensorView x, TensorView y,
              TensorView place) {
  ctx.device().is_cuda() ? cuda::max_pool(ctx, shape, x, y, place)
                         : cpu::max_pool(ctx, shape, x, y, place);
}

void max_pool_backward(Context& ctx, const PoolShape& shape, ConstTensorView dy,
                       ConstTensorView place, TensorView dx) {
  ctx.device().is_cuda() ? cuda::max_pool_backward(ctx, shape, dy, place, dx)
                         : cpu::max_pool_backward(ctx, shape, dy, place, dx);
}

void average_pool(Context& ctx, const PoolShape& shape, ConstTensorView x, TensorView y) {
  ctx.device().is_cuda() ? cuda::average_pool(ctx, shape, x, y)
                         : cpu::average_pool(ctx, shape, x, y);
}

void average_pool_backward(Context& ctx, const PoolShape& shape, ConstTensorView dy,
                           TensorView dx) {
  ctx.device().is_cuda() ? cuda::average_pool_backward(ctx, shape, dy, dx)
                         : cpu::average_pool_backward(ctx, shape, dy, dx);
}

void global_average(Context& ctx, const GlobalShape& shape, ConstTensorView x, TensorView y) {
  ctx.device().is_cuda() ? cuda::global_average(ctx, shape, x, y)
                         : cpu::global_average(ctx, shape, x, y);
}

void global_average_backward(Context& ctx, const GlobalShape& shape, ConstTensorView dy,
                             TensorView dx) {
  ctx.device().is_cuda() ? cuda::global_average_backward(ctx, shape, dy, dx)
                         : cpu::global_average_backward(ctx, shape, dy, dx);
}

void global_max(Context& ctx, const GlobalShape& shape, ConstTensorView x, TensorView y,
                TensorView place) {
  ctx.device().is_cuda() ? cuda::global_max(ctx, shape, x, y, place)
                         : cpu::global_max(ctx, shape, x, y, place);
}

void global_max_backward(Context& ctx, const GlobalShape& shape, ConstTensorView dy,
                         ConstTensorView place, TensorView dx) {
  ctx.device().is_cuda() ? cuda::global_max_backward(ctx, shape, dy, place, dx)
                         : cpu::global_max_backward(ctx, shape, dy, place, dx);
}

void batch_moments(Context& ctx, const NormShape& shape, ConstTensorView x, TensorView mean,
                   TensorView rest, TensorView variance) {
  ctx.device().is_cuda() ? cuda::batch_moments(ctx, shape, x, mean, rest, variance)
                         : cpu::batch_moments(ctx, shape, x, mean, rest, variance);
}

void moments_from_sums(Context& ctx, const NormShape& shape, ConstTensorView sum,
                       ConstTensorView sum_of_squares, TensorView mean, TensorView rest,
                       TensorView variance) {
  ctx.device().is_cuda()
      ? cuda::moments_from_sums(ctx, shape, sum, sum_of_squares, mean, rest, variance)
      : cpu::moments_from_sums(ctx, shape, sum, sum_of_squares, mean, rest, variance);
}

void finish_moments(Context& ctx, const NormShape& shape, ConstTensorView variance,
                    const NormChannels& channels, const NormMoments& out) {
  ctx.device().is_cuda() ? cuda::finish_moments(ctx, shape, variance, channels, out)
                         : cpu::finish_moments(ctx, shape, variance, channels, out);
}

void running_factors(Context& ctx, const NormChannels& channels, TensorView factor,
                     TensorView rest) {
  ctx.device().is_cuda() ? cuda::running_factors(ctx, channels, factor, rest)
                         : cpu::running_factors(ctx, channels, factor, rest);
}

void normalize(Context& ctx, const NormShape& shape, ConstTensorView x, const Affine& affine,
               ConstTensorView addend, const Activation& activation, TensorView y,
               TensorView signs) {
  ctx.device().is_cuda() ? cuda::normalize(ctx, shape, x, affine, addend, activation, y, signs)
                         : cpu::normalize(ctx, shape, x, affine, addend, activation, y, signs);
}

void gradient_sums(Context& ctx, const NormShape& shape, ConstTensorView x, const Affine& affine,
                   const OutputGrad& grad, TensorView masked, TensorView sum_g,
                   TensorView sum_g_centered) {
  ctx.device().is_cuda()
      ? cuda::gradient_sums(ctx, shape, x, affine, grad, masked, sum_g, sum_g_centered)
      : cpu::gradient_sums(ctx, shape, x, affine, grad, masked, sum_g, sum_g_centered);
}

void sums_of_gradients(Context& ctx, const NormShape& shape, ConstTensorView scale_grad,
                       ConstTensorView shift_grad, ConstTensorView inv_std, TensorView sum_g,
                       TensorView sum_g_centered) {
  ctx.device().is_cuda()
      ? cuda::sums_of_gradients(ctx, shape, scale_grad, shift_grad, inv_std, sum_g, sum_g_centered)
      : cpu::sums_of_gradients(ctx, shape, scale_grad, shift_grad, inv_std, sum_g, sum_g_centered);
}

void train_moments(Context& ctx, const NormShape& shape, ConstTensorView x,
                   const NormChannels& channels, const NormMoments& out) {
  ctx.device().is_cuda() ? cuda::train_moments(ctx, shape, x, channels, out)
                         : cpu::train_moments(ctx, shape, x, channels, out);
}

void norm_gradients(Context& ctx, const NormShape& shape, ConstTensorView gamma,
                    ConstTensorView inv_std, ConstTensorView sum_g, ConstTensorView sum_g_centered,
                    TensorView scale_grad, TensorView shift_grad, const NormCoefficients& to) {
  ctx.device().is_cuda() ? cuda::norm_gradients(ctx, shape, gamma, inv_std, sum_g, sum_g_centered,
                                                scale_grad, shift_grad, to)
                         : cpu::norm_gradients(ctx, shape, gamma, inv_std, sum_g, sum_g_centered,
                                               scale_grad, shift_grad, to);
}

void normalize_backward(Context& ctx, const NormShape& shape, ConstTensorView x,
                        const Affine& affine, const OutputGrad& grad, const GradCoefficients& k,
                        TensorView dx) {
  ctx.device().is_cuda() ? cuda::normalize_backward(ctx, shape, x, affine, grad, k, dx)
                         : cpu::normalize_backward(ctx, shape, x, affine, grad, k, dx);
}

void normalize_rows(Context& ctx, double epsilon, ConstTensorView x, ConstTensorView gamma,
                    ConstTensorView beta, TensorView mean, TensorView inv_std, TensorView y) {
  ctx.device().is_cuda() ? cuda::normalize_rows(ctx, epsilon, x, gamma, beta, mean, inv_std, y)
                         : cpu::normalize_rows(ctx, epsilon, x, gamma, beta, mean, inv_std, y);
}

void row_norm_gradients(Context& ctx, ConstTensorView x, ConstTensorView mean,
                        ConstTensorView inv_std, ConstTensorView dy, TensorView scale_grad,
                        TensorView shift_grad) {
  ctx.device().is_cuda()
      ? cuda::row_norm_gradients(ctx, x, mean, inv_std, dy, scale_grad, shift_grad)
      : cpu::row_norm_gradients(ctx, x, mean, inv_std, dy, scale_grad, shift_grad);
}

void normalize_rows_backward(Context& ctx, ConstTensorView x, ConstTensorView gamma,
                             ConstTensorView mean, ConstTensorView inv_std, ConstTensorView dy,
                             TensorView dx) {
  ctx.device().is_cuda() ? cuda::normalize_rows_backward(ctx, x, gamma, mean, inv_std, dy, dx)
                         : cpu::normalize_rows_backward(ctx, x, gamma, mean, inv_std, dy, dx);
}

}  // namespace dkfac::nn::kernels
