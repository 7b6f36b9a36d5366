#pragma once

#include "dkfac/core/tensor_view.h"

#include "core/shared/kernel.h"
#include "nn/backends/norm_shape.h"

/// Kernels of batch normalisation. The order of sums depends only on the shape; variance and sums
/// over rows are f64.
namespace dkfac::nn {

/// Mean and variance (divided by rows; f64 [groups,c]) over the rows of each group, without
/// cancellation for a mean that is large relative to the deviation.
DKFAC_KERNEL(void, batch_moments, const NormShape& shape, ConstTensorView x, TensorView mean,
             TensorView rest, TensorView variance);
/// Mean and variance from sums of x and of x*x over the rows of each group, f32 [groups,c], as the
/// producer of x may leave them. Not for a mean that is large relative to the deviation: the
/// variance is then off by about mean^2 times the relative error of the sums, and 0 where it would
/// be negative.
DKFAC_KERNEL(void, moments_from_sums, const NormShape& shape, ConstTensorView sum,
             ConstTensorView sum_of_squares, TensorView mean, TensorView rest, TensorView variance);
/// Computes from mean, rest and variance: inv_std, scale and shift of `out`, and the running
/// statistics, which move by momentum towards the mean over the groups (unbiased variance). A
/// running value that would not be finite stays unchanged.
DKFAC_KERNEL(void, finish_moments, const NormShape& shape, ConstTensorView variance,
             const NormChannels& channels, const NormMoments& out);
/// Packs the moments of the only group of this rank for combine_moments(): to = [rows, mean, rest,
/// variance], f64 [1 + 3 c].
DKFAC_KERNEL(void, pack_moments, const NormShape& shape, const Mean& mean, ConstTensorView variance,
             TensorView to);
/// Moments of the union of one group of each rank, from packed[ranks, 1 + 3 c], in rank order and
/// without cancellation (Chan et al. 1983). NaN unless every rank has shape.rows rows.
DKFAC_KERNEL(void, combine_moments, const NormShape& shape, ConstTensorView packed, TensorView mean,
             TensorView rest, TensorView variance);
/// moments_from_sums() followed by finish_moments(), for one group.
DKFAC_KERNEL(void, train_moments_from_sums, const NormShape& shape, ConstTensorView sum,
             ConstTensorView sum_of_squares, const NormChannels& channels, const NormMoments& out);
/// batch_moments() followed by finish_moments().
DKFAC_KERNEL(void, train_moments, const NormShape& shape, ConstTensorView x,
             const NormChannels& channels, const NormMoments& out);
/// factor[1,c] = scale / sqrt(running_var + epsilon), rest[1,c] = 0: the Affine of evaluation.
DKFAC_KERNEL(void, running_factors, const NormChannels& channels, TensorView factor,
             TensorView rest);
/// y = activation((x - mean) * scale + shift + addend); the addend, shaped like x, may be empty.
/// signs: signs_shape(), where has_signs(); or empty.
DKFAC_KERNEL(void, normalize, const NormShape& shape, ConstTensorView x, const Affine& affine,
             ConstTensorView addend, const Activation& activation, TensorView y, TensorView signs);
/// Computes from the sums of train_gradients() those of these three that are not empty:
/// scale_grad[c] = sum over groups of sum_g_centered * inv_std, shift_grad[c] of sum_g; `to`: the
/// coefficients [groups,c] of dx = gamma/std * (g - mean(g) - xhat * mean(g * xhat)), with means
/// over the group and xhat = (x - mean)/std, as a*g + b*(x - mean) + c. gamma: [c].
DKFAC_KERNEL(void, norm_gradients, const NormShape& shape, ConstTensorView gamma,
             ConstTensorView inv_std, ConstTensorView sum_g, ConstTensorView sum_g_centered,
             TensorView scale_grad, TensorView shift_grad, const NormCoefficients& to);
/// sum_g = sum over rows of g, sum_g_centered = sum of g * (x - mean), both f64 [groups,c], and
/// what norm_gradients() computes from them; g itself goes to `masked`, which may be the memory of
/// the addend, unless that is empty. Reads x, dy, the addend and y, or its signs, once.
DKFAC_KERNEL(void, train_gradients, const NormShape& shape, ConstTensorView x, const Affine& affine,
             const OutputGrad& grad, TensorView masked, ConstTensorView gamma,
             ConstTensorView inv_std, const ChannelGradients& out);
namespace cuda {
/// train_gradients() by way of the gradients of each sample: of_samples[samples,2,c], of the type
/// that x is computed in, has the sums over the positions of a sample of g * (x - mean) * inv_std,
/// that of the scale, and of g, that of the shift. `out` follows from their sums over the samples
/// of a group, so it differs from that of train_gradients() by rounding. The samples are
/// consecutive runs of rows of one length.
DKFAC_DEVICE_KERNEL(void, train_gradients_by_sample, const NormShape& shape, ConstTensorView x,
                    const Affine& affine, const OutputGrad& grad, TensorView masked,
                    ConstTensorView gamma, ConstTensorView inv_std, const ChannelGradients& out,
                    TensorView of_samples);
}  // namespace cuda
/// norm_gradients() from sums of one group that are already available, f32 [c]: scale_grad = sum of
/// g * (x - mean) * inv_std, shift_grad = sum of g. Writes the sums of train_gradients() too.
DKFAC_KERNEL(void, gradients_from_sums, const NormShape& shape, ConstTensorView scale_grad,
             ConstTensorView shift_grad, ConstTensorView gamma, ConstTensorView inv_std,
             const ChannelGradients& out);
/// dx = a*g + b*(x - mean) + c. Reads x, dy and y once.
DKFAC_KERNEL(void, normalize_backward, const NormShape& shape, ConstTensorView x,
             const Affine& affine, const OutputGrad& grad, const GradCoefficients& k,
             TensorView dx);

// Layer normalisation of x[rows,c]; gamma, beta: [c], mean, inv_std: [rows], of the dtype that x is
// computed in. Sums are f64.

/// Computes mean and inv_std = 1/sqrt(variance + epsilon) of each row, the variance divided by c,
/// and y = (x - mean) * inv_std * gamma + beta.
DKFAC_KERNEL(void, normalize_rows, double epsilon, ConstTensorView x, ConstTensorView gamma,
             ConstTensorView beta, TensorView mean, TensorView inv_std, TensorView y);
/// With xhat = (x - mean) * inv_std, scale_grad[c] = sum over rows of dy * xhat, shift_grad[c] of
/// dy.
DKFAC_KERNEL(void, row_norm_gradients, ConstTensorView x, ConstTensorView mean,
             ConstTensorView inv_std, ConstTensorView dy, TensorView scale_grad,
             TensorView shift_grad);
/// dx = inv_std * (g - mean(g) - xhat * mean(g * xhat)), g = dy * gamma, with means over the row.
DKFAC_KERNEL(void, normalize_rows_backward, ConstTensorView x, ConstTensorView gamma,
             ConstTensorView mean, ConstTensorView inv_std, ConstTensorView dy, TensorView dx);

}  // namespace dkfac::nn
