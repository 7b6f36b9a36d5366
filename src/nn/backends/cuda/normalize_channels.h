#pragma once

#include <cmath>
#include <cstdint>

#include "core/shared/cuda/device_code.h"
#include "nn/backends/norm_shape.h"

/// Channel arithmetic of batch normalisation: functors for the host and the device. C: f64 or f32,
/// the type of all tensors but sums and variances, which are f64.
namespace dkfac::nn {

/// Functor of moments_from_sums(); (k) processes channel k % channels of group k / channels.
template <class C>
struct MomentsFromSums {
  MomentsFromSums(const NormShape& s, ConstTensorView sum, ConstTensorView sum_of_squares,
                  TensorView to_mean, TensorView to_rest, TensorView to_variance)
      : rows(static_cast<double>(s.rows)),
        sums(sum.data<float>()),
        squares(sum_of_squares.data<float>()),
        mean(to_mean.data<C>()),
        rest(to_rest.data<C>()),
        variance(to_variance.data<double>()) {}

  DKFAC_HD void operator()(std::int64_t k) const {
    const double wide = static_cast<double>(sums[k]) / rows;
    const double var = static_cast<double>(squares[k]) / rows - wide * wide;
    mean[k] = static_cast<C>(wide);
    rest[k] = static_cast<C>(wide - static_cast<double>(mean[k]));
    variance[k] = var < 0.0 ? 0.0 : var;  // NaN stays NaN.
  }

  double rows;
  const float *sums, *squares;
  C *mean, *rest;
  double* variance;
};

/// Functor of pack_moments(); (c) processes channel c.
template <class C>
struct PackMoments {
  PackMoments(const NormShape& s, const Mean& of, ConstTensorView of_variance, TensorView packed)
      : channels(s.channels),
        rows(static_cast<double>(s.rows)),
        mean(of.mean.data<C>()),
        rest(of.rest.data<C>()),
        variance(of_variance.data<double>()),
        to(packed.data<double>()) {}

  DKFAC_HD void operator()(std::int64_t c) const {
    if (c == 0) to[0] = rows;
    to[1 + c] = static_cast<double>(mean[c]);
    to[1 + channels + c] = static_cast<double>(rest[c]);
    to[1 + 2 * channels + c] = variance[c];
  }

  std::int64_t channels;
  double rows;
  const C *mean, *rest;
  const double* variance;
  double* to;
};

/// Functor of combine_moments(); (c) processes channel c.
template <class C>
struct CombineMoments {
  CombineMoments(const NormShape& s, ConstTensorView packed, TensorView to_mean, TensorView to_rest,
                 TensorView to_variance)
      : channels(s.channels),
        ranks(packed.dim(0)),
        width(packed.dim(1)),
        rows(static_cast<double>(s.rows)),
        all(packed.data<double>()),
        mean(to_mean.data<C>()),
        rest(to_rest.data<C>()),
        variance(to_variance.data<double>()) {}

  /// Distance of a rank's mean from the first rank's, which is small beside a large mean.
  [[nodiscard]] DKFAC_HD double distance(const double* of, std::int64_t c) const {
    return (of[1 + c] - all[1 + c]) + of[1 + channels + c];
  }
  DKFAC_HD void operator()(std::int64_t c) const {
    const auto count = static_cast<double>(ranks);
    double sum = 0, squares = 0;
    bool alike = true;
    for (std::int64_t r = 0; r < ranks; ++r) {
      const double* of = all + r * width;
      sum += distance(of, c);
      alike = alike && of[0] == rows;
    }
    const double center = all[1 + c], shift = sum / count;
    for (std::int64_t r = 0; r < ranks; ++r) {
      const double* of = all + r * width;
      const double apart = distance(of, c) - shift;
      squares += of[1 + 2 * channels + c] + apart * apart;
    }
    variance[c] = alike ? squares / count : NAN;
    mean[c] = static_cast<C>(alike ? center + shift : NAN);
    rest[c] = static_cast<C>((center - static_cast<double>(mean[c])) + shift);
  }

  std::int64_t channels, ranks, width;
  double rows;
  const double* all;
  C *mean, *rest;
  double* variance;
};

/// Functor of finish_moments() (backend_normalize.h); (c) processes channel c of all groups.
template <class C>
struct FinishMoments {
  FinishMoments(const NormShape& s, ConstTensorView variance, const NormChannels& channels,
                const NormMoments& out)
      : groups(s.groups),
        channels_count(s.channels),
        rows(static_cast<double>(s.rows)),
        epsilon(channels.epsilon),
        momentum(channels.momentum),
        var(variance.data<double>()),
        mean(out.mean.data<C>()),
        rest(out.rest.data<C>()),
        gamma(channels.scale.data<C>()),
        beta(channels.shift.data<C>()),
        inv_std(out.inv_std.data<C>()),
        scale(out.scale.data<C>()),
        shift(out.shift.data<C>()),
        running_mean(channels.running_mean.data<C>()),
        running_var(channels.running_var.data<C>()) {}

  DKFAC_HD void operator()(std::int64_t c) const {
    const double unbiased = rows / (rows - 1), take = momentum / static_cast<double>(groups);
    double next_mean = (1 - momentum) * static_cast<double>(running_mean[c]);
    double next_var = (1 - momentum) * static_cast<double>(running_var[c]);
    for (std::int64_t k = c; k < groups * channels_count; k += channels_count) {
      const double inverse = 1.0 / sqrt(var[k] + epsilon);
      inv_std[k] = static_cast<C>(inverse);
      scale[k] = static_cast<C>(inverse * static_cast<double>(gamma[c]));
      shift[k] = beta[c];
      next_mean += take * (static_cast<double>(mean[k]) + static_cast<double>(rest[k]));
      next_var += take * unbiased * var[k];
    }
    // A step that overflows is skipped, but running statistics could not be restored.
    const C to_mean = static_cast<C>(next_mean), to_var = static_cast<C>(next_var);
    if (!(to_mean - to_mean == 0) || !(to_var - to_var == 0)) return;
    running_mean[c] = to_mean;
    running_var[c] = to_var;
  }

  std::int64_t groups, channels_count;
  double rows, epsilon, momentum;
  const double* var;
  const C *mean, *rest, *gamma, *beta;
  C *inv_std, *scale, *shift, *running_mean, *running_var;
};

/// Functor of running_factors().
template <class C>
struct RunningFactor {
  RunningFactor(const NormChannels& channels, TensorView to, TensorView none)
      : epsilon(channels.epsilon),
        gamma(channels.scale.data<C>()),
        var(channels.running_var.data<C>()),
        factor(to.data<C>()),
        rest(none.data<C>()) {}

  DKFAC_HD void operator()(std::int64_t c) const {
    factor[c] =
        static_cast<C>(static_cast<double>(gamma[c]) / sqrt(static_cast<double>(var[c]) + epsilon));
    rest[c] = C{0};
  }

  double epsilon;
  const C *gamma, *var;
  C *factor, *rest;
};

/// Computes the sums of train_gradients() for channel c from scale_grad = sum of g * (x - mean) *
/// inv_std and shift_grad = sum of g.
template <class C>
struct SumsOfGradients {
  SumsOfGradients(ConstTensorView of_scale, ConstTensorView of_shift, ConstTensorView inverse,
                  TensorView g, TensorView g_centered)
      : scale_grad(of_scale.data<float>()),
        shift_grad(of_shift.data<float>()),
        inv_std(inverse.data<C>()),
        sum_g(g.data<double>()),
        sum_g_centered(g_centered.data<double>()) {}

  DKFAC_HD void operator()(std::int64_t c) const {
    sum_g[c] = static_cast<double>(shift_grad[c]);
    sum_g_centered[c] = static_cast<double>(scale_grad[c]) / static_cast<double>(inv_std[c]);
  }

  const float *scale_grad, *shift_grad;
  const C* inv_std;
  double *sum_g, *sum_g_centered;
};

/// Functor of norm_gradients(); (c) processes channel c of all groups.
template <class C>
struct NormGradients {
  NormGradients(const NormShape& s, ConstTensorView scale, ConstTensorView inverse,
                ConstTensorView g, ConstTensorView g_centered, TensorView to_scale,
                TensorView to_shift, const NormCoefficients& to)
      : count(s.groups * s.channels),
        channels(s.channels),
        rows(static_cast<double>(s.rows)),
        gamma(scale.data<C>()),
        inv_std(inverse.data<C>()),
        sum_g(g.data<double>()),
        sum_g_centered(g_centered.data<double>()),
        scale_grad(or_null(to_scale)),
        shift_grad(or_null(to_shift)),
        of_g(or_null(to.a)),
        of_x(or_null(to.b)),
        constant(or_null(to.c)) {}

  DKFAC_HD void operator()(std::int64_t c) const {
    const auto scale = static_cast<double>(gamma[c]);
    double of_scale = 0, of_shift = 0;
    for (std::int64_t k = c; k < count; k += channels) {
      const auto inverse = static_cast<double>(inv_std[k]);
      of_scale += sum_g_centered[k] * inverse;
      of_shift += sum_g[k];
      if (of_g == nullptr) continue;
      of_g[k] = static_cast<C>(scale * inverse);
      of_x[k] = static_cast<C>(-scale * inverse * inverse * inverse * sum_g_centered[k] / rows);
      constant[k] = static_cast<C>(-scale * inverse * sum_g[k] / rows);
    }
    if (scale_grad != nullptr) scale_grad[c] = static_cast<C>(of_scale);
    if (shift_grad != nullptr) shift_grad[c] = static_cast<C>(of_shift);
  }

  static C* or_null(TensorView x) { return x.empty() ? nullptr : x.data<C>(); }

  std::int64_t count, channels;
  double rows;
  const C *gamma, *inv_std;
  const double *sum_g, *sum_g_centered;
  C *scale_grad, *shift_grad, *of_g, *of_x, *constant;
};

template <class C>
NormGradients<C> gradients_of(const NormShape& s, ConstTensorView gamma, ConstTensorView inv_std,
                              const ChannelGradients& out) {
  return NormGradients<C>(s, gamma, inv_std, out.sum_g, out.sum_g_centered, out.scale_grad,
                          out.shift_grad, out.to);
}

/// For one group, MomentsFromSums and what follows for its channel.
template <class C>
struct FinishFromSums {
  MomentsFromSums<C> sums;
  FinishMoments<C> moments;
  DKFAC_HD void operator()(std::int64_t c) const {
    sums(c);
    moments(c);
  }
};

/// For one group, SumsOfGradients and what follows for its channel.
template <class C>
struct GradientsFromSums {
  SumsOfGradients<C> sums;
  NormGradients<C> gradients;
  DKFAC_HD void operator()(std::int64_t c) const {
    sums(c);
    gradients(c);
  }
};

}  // namespace dkfac::nn
