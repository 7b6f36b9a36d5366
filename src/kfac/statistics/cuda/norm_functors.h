#pragma once

#include <cstdint>

#include "core/shared/cuda/convert.h"
#include "core/shared/cuda/device_code.h"
#include "core/shared/element.h"
#include "kfac/statistics/norm_data.h"

/// Functors of the gradients of each sample of a normalisation, and of their products
/// (norm_data.h).
namespace dkfac::kfac::cuda {

/// Sums over positions of dy and dy * (x - mean).
template <class T>
struct PositionSums {
  T dy, product;
};
template <class T>
DKFAC_HD PositionSums<T> operator+(PositionSums<T> a, PositionSums<T> b) {
  return {a.dy + b.dy, a.product + b.product};
}

/// mean or inv_std, of any floating dtype: of a channel of a group, or with NormOver::channels of a
/// row, which belongs to no group (strides 0).
struct NormStatistic {
  const void* data;
  DType dtype;
  std::int64_t group_stride, channel_stride, row_stride = 0;

  DKFAC_HD double operator()(std::int64_t group, std::int64_t channel, std::int64_t row) const {
    const std::int64_t i = group * group_stride + channel * channel_stride + row * row_stride;
    switch (dtype) {
      case DType::f64:
        return static_cast<const double*>(data)[i];
      case DType::f32:
        return static_cast<double>(static_cast<const float*>(data)[i]);
      case DType::f16:
        return dkfac::cuda::widened<double>(static_cast<const f16*>(data)[i]);
      case DType::bf16:
        return dkfac::cuda::widened<double>(static_cast<const bf16*>(data)[i]);
      case DType::i32:
        break;
    }
    return 0;
  }
};

/// Index arithmetic: the sums of one channel of one sample have index item = sample * channels +
/// channel.
struct NormItems {
  std::int64_t n, channels, positions, groups;
  bool nhwc;
  bool by_rows = false;  ///< NormOver::channels

  DKFAC_HD std::int64_t sample(std::int64_t item) const { return item / channels; }
  DKFAC_HD std::int64_t channel(std::int64_t item) const { return item % channels; }
  DKFAC_HD std::int64_t group(std::int64_t item) const { return sample(item) * groups / n; }
  DKFAC_HD std::int64_t row(std::int64_t item, std::int64_t position) const {
    return sample(item) * positions + position;
  }
  /// Index of an element of x and dy.
  DKFAC_HD std::int64_t element(std::int64_t item, std::int64_t position) const {
    if (!nhwc) return item * positions + position;
    return (sample(item) * positions + position) * channels + channel(item);
  }
};

/// E: element of x and dy; T: computing type.
template <class E, class T>
struct PositionTerm {
  const E* x;
  const E* dy;
  NormItems shape;
  NormStatistic mean,
      inv_std;  ///< inv_std: read only with by_rows, where it differs between positions.

  DKFAC_HD PositionSums<T> operator()(std::int64_t item, std::int64_t position) const {
    const std::int64_t i = shape.element(item, position);
    const std::int64_t group = shape.group(item), channel = shape.channel(item);
    const std::int64_t row = shape.row(item, position);
    const T g = dkfac::cuda::widened<T>(dy[i]);
    const T centered = dkfac::cuda::widened<T>(x[i]) - static_cast<T>(mean(group, channel, row));
    if (!shape.by_rows) return {g, g * centered};
    return {g, g * (centered * static_cast<T>(inv_std(group, channel, row)))};
  }
};

/// Writes rows[n, width] = [gamma of all channels, beta of all channels], or beta alone.
template <class T, class R>
struct StoreGradients {
  R* rows;
  bool has_gamma;
  NormItems shape;
  NormStatistic inv_std;
  double sample_scale;

  DKFAC_HD void operator()(std::int64_t item, PositionSums<T> sums) const {
    const std::int64_t channel = shape.channel(item);
    R* row = rows + shape.sample(item) * shape.channels * (has_gamma ? 2 : 1) + channel;
    if (has_gamma) {
      const double scale =
          shape.by_rows ? sample_scale : sample_scale * inv_std(shape.group(item), channel, 0);
      *row = static_cast<R>(scale * static_cast<double>(sums.product));
      row += shape.channels;
    }
    *row = static_cast<R>(sample_scale * static_cast<double>(sums.dy));
  }
};

/// Sums over samples of products of gradients.
struct GradientProducts {
  double gamma_gamma, gamma_beta, beta_beta;
};
DKFAC_HD inline GradientProducts operator+(GradientProducts a, GradientProducts b) {
  return {a.gamma_gamma + b.gamma_gamma, a.gamma_beta + b.gamma_beta, a.beta_beta + b.beta_beta};
}
/// R: type of the gradients.
template <class R>
struct ProductTerm {
  const R* rows;  ///< Of `width` each, which end with those of beta.
  bool has_gamma;
  std::int64_t channels, width;
  double sample_scale;  ///< By which they are still to be multiplied.

  DKFAC_HD GradientProducts operator()(std::int64_t channel, std::int64_t sample) const {
    const R* row = rows + sample * width + channel;
    const double beta = sample_scale * static_cast<double>(row[width - channels]);
    if (!has_gamma) return {0, 0, beta * beta};
    const double gamma = sample_scale * static_cast<double>(row[0]);
    return {gamma * gamma, gamma * beta, beta * beta};
  }
};

/// Writes fisher[rows,c] = beta*fisher + scale * the products that `rows` selects; beta = 0 does
/// not read fisher.
template <class T>
struct StoreFisher {
  T* fisher;
  std::int64_t rows, stride;
  double scale, beta;

  DKFAC_HD void put(std::int64_t row, std::int64_t channel, double product) const {
    T& to = fisher[row * stride + channel];
    const double old = beta == 0 ? 0 : beta * static_cast<double>(to);
    to = static_cast<T>(old + scale * product);
  }
  DKFAC_HD void operator()(std::int64_t channel, GradientProducts sums) const {
    if (rows > 1) put(0, channel, sums.gamma_gamma);
    if (rows > 2) put(1, channel, sums.gamma_beta);
    put(rows - 1, channel, sums.beta_beta);
  }
};

}  // namespace dkfac::kfac::cuda
