#include "nn/cuda/normalize_channels.h"

#include "nn/backend_normalize.h"
#include "nn/dtype.h"

/// The arithmetic of one channel is in normalize_channels.h, for every backend.
namespace dkfac::nn::cpu {

void moments_from_sums(Context&, const NormShape& s, ConstTensorView sum,
                       ConstTensorView sum_of_squares, TensorView mean, TensorView rest,
                       TensorView variance) {
  for_dtype(mean.dtype(), [&](auto t) {
    const MomentsFromSums<decltype(t)> moments(s, sum, sum_of_squares, mean, rest, variance);
    for (std::int64_t k = 0; k < s.groups * s.channels; ++k) moments(k);
  });
}

void finish_moments(Context&, const NormShape& s, ConstTensorView variance,
                    const NormChannels& channels, const NormStatistics& out) {
  for_dtype(out.mean.dtype(), [&](auto t) {
    const FinishMoments<decltype(t)> finish(s, variance, channels, out);
    for (std::int64_t c = 0; c < s.channels; ++c) finish(c);
  });
}

void running_factors(Context&, const NormChannels& channels, TensorView factor, TensorView rest) {
  for_dtype(factor.dtype(), [&](auto t) {
    const RunningFactor<decltype(t)> running(channels, factor, rest);
    for (std::int64_t c = 0; c < factor.numel(); ++c) running(c);
  });
}

void norm_parameter_gradients(Context&, const NormShape& s, ConstTensorView inv_std,
                              ConstTensorView sum_g, ConstTensorView sum_g_centered,
                              TensorView scale_grad, TensorView shift_grad) {
  for_dtype(shift_grad.dtype(), [&](auto t) {
    const ParameterGradients<decltype(t)> gradients(s, inv_std, sum_g, sum_g_centered, scale_grad,
                                                    shift_grad);
    for (std::int64_t c = 0; c < s.channels; ++c) gradients(c);
  });
}

void norm_coefficients(Context&, const NormShape& s, ConstTensorView gamma, ConstTensorView inv_std,
                       ConstTensorView sum_g, ConstTensorView sum_g_centered, TensorView a,
                       TensorView b, TensorView c) {
  for_dtype(a.dtype(), [&](auto t) {
    const Coefficients<decltype(t)> coefficients(s, gamma, inv_std, sum_g, sum_g_centered, a, b, c);
    for (std::int64_t k = 0; k < s.groups * s.channels; ++k) coefficients(k);
  });
}

}  // namespace dkfac::nn::cpu
