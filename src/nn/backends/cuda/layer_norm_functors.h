#pragma once

#include <cmath>
#include <cstdint>

#include "core/shared/cuda/convert.h"
#include "core/shared/cuda/device_code.h"
#include "core/shared/cuda/reduce_ops.h"
#include "nn/backends/dtype.h"

/// Elements and sums in the kernels of layer normalisation of x[rows,c]. Sums are f64.
namespace dkfac::nn::cuda {

using dkfac::cuda::AddPairs;
using dkfac::cuda::StoreEach;
using dkfac::cuda::SumPair;

/// Sums of x - x_0 and of its square, with x_0 the first element of the row. x_0 is at most sqrt(c)
/// deviations from the mean, so the variance from these sums is off by at most c roundings of f64,
/// however large the mean is relative to the deviation.
template <class T>
struct RowMomentTerm {
  const T* x;
  std::int64_t channels;

  DKFAC_HD SumPair operator()(std::int64_t row, std::int64_t channel) const {
    const T* of_row = x + row * channels;
    const double d =
        dkfac::cuda::widened<double>(of_row[channel]) - dkfac::cuda::widened<double>(of_row[0]);
    return {d, d * d};
  }
};
template <class T>
struct StoreRowMoments {
  const T* x;
  std::int64_t channels;
  double epsilon;
  Computed<T>* mean;
  Computed<T>* inv_std;

  DKFAC_HD void operator()(std::int64_t row, SumPair sums) const {
    const auto n = static_cast<double>(channels);
    const double shift = sums.first / n, variance = sums.second / n - shift * shift;
    const double first = dkfac::cuda::widened<double>(x[row * channels]);
    mean[row] = static_cast<Computed<T>>(first + shift);
    // A NaN stays NaN.
    inv_std[row] = static_cast<Computed<T>>(1 / std::sqrt((variance < 0 ? 0 : variance) + epsilon));
  }
};

/// xhat = (x - mean) * inv_std.
template <class T>
struct NormalizedRows {
  using C = Computed<T>;
  const T* x;
  std::int64_t channels;
  const C* mean;
  const C* inv_std;

  DKFAC_HD C operator()(std::int64_t row, std::int64_t channel) const {
    return (dkfac::cuda::widened<C>(x[row * channels + channel]) - mean[row]) * inv_std[row];
  }
};

template <class T>
struct NormalizeRow {
  NormalizedRows<T> normalized;
  const Computed<T>* gamma;
  const Computed<T>* beta;
  T* y;

  DKFAC_HD void operator()(std::int64_t row, std::int64_t channel) const {
    y[row * normalized.channels + channel] =
        dkfac::cuda::rounded<T>(normalized(row, channel) * gamma[channel] + beta[channel]);
  }
};

/// g = dy * gamma, and g * xhat.
template <class T>
struct RowGradientTerm {
  NormalizedRows<T> normalized;
  const Computed<T>* gamma;
  const T* dy;

  DKFAC_HD Computed<T> gradient(std::int64_t row, std::int64_t channel) const {
    const T of_output = dy[row * normalized.channels + channel];
    return dkfac::cuda::widened<Computed<T>>(of_output) * gamma[channel];
  }
  DKFAC_HD SumPair operator()(std::int64_t row, std::int64_t channel) const {
    const auto g = static_cast<double>(gradient(row, channel));
    return {g, g * static_cast<double>(normalized(row, channel))};
  }
};

/// dx = (g - mean(g) - xhat * mean(g * xhat)) / std, with means over the row.
template <class T>
struct NormalizeRowBackward {
  RowGradientTerm<T> terms;
  const SumPair* sums;
  T* dx;

  DKFAC_HD void operator()(std::int64_t row, std::int64_t channel) const {
    using C = Computed<T>;
    const NormalizedRows<T>& normalized = terms.normalized;
    const auto n = static_cast<double>(normalized.channels);
    const C mean_g = static_cast<C>(sums[row].first / n);
    const C mean_product = static_cast<C>(sums[row].second / n);
    const C centered =
        (terms.gradient(row, channel) - mean_g) - normalized(row, channel) * mean_product;
    dx[row * normalized.channels + channel] =
        dkfac::cuda::rounded<T>(centered * normalized.inv_std[row]);
  }
};

/// dy * xhat and dy, of one channel in one row.
template <class T>
struct ChannelGradientTerm {
  NormalizedRows<T> normalized;
  const T* dy;

  DKFAC_HD SumPair operator()(std::int64_t channel, std::int64_t row) const {
    const double g = dkfac::cuda::widened<double>(dy[row * normalized.channels + channel]);
    return {g * static_cast<double>(normalized(row, channel)), g};
  }
};
template <class C>
struct StoreChannelGradients {
  C* scale_grad;
  C* shift_grad;
  DKFAC_HD void operator()(std::int64_t channel, SumPair sums) const {
    scale_grad[channel] = static_cast<C>(sums.first);
    shift_grad[channel] = static_cast<C>(sums.second);
  }
};

}  // namespace dkfac::nn::cuda
