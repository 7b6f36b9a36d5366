#pragma once

#include <cstddef>
#include <cstdint>

#include "core/shared/cuda/convert.h"
#include "core/shared/cuda/device_code.h"
#include "nn/backends/activate.h"
#include "nn/backends/cuda/channel_packs.h"
#include "nn/backends/cuda/columns.h"
#include "nn/backends/cuda/normalize_channels.h"
#include "nn/backends/dtype.h"
#include "nn/backends/norm_shape.h"

/// Batch normalisation over x[groups,rows,channels], W channels at a time (backend_normalize.h).
/// W is kPack<T>, or 1 where that does not divide the channels.
namespace dkfac::nn::cuda {

/// Pointers of an Affine, all [groups,channels].
template <class C>
struct AffineValues {
  const C *mean, *rest, *scale, *shift;
  bool aligned;

  explicit AffineValues(const Affine& a)
      : mean(a.mean.mean.data<C>()),
        rest(a.mean.rest.data<C>()),
        scale(a.scale.data<C>()),
        shift(a.shift.data<C>()),
        aligned(are_aligned(mean, rest, scale, shift)) {}
};

/// Sums of x - P and of its square, with P the value of the group's first row. A thread sums around
/// its own first row in the type that x is computed in, then converts the sums to P in f64. A mean
/// that is large relative to the deviation therefore costs no digits, and an outlier row costs
/// digits only of the few rows summed around it.
template <class T, std::size_t W>
struct MomentRows {
  using C = Computed<T>;
  const T* x;
  std::int64_t rows, channels;

  DKFAC_HD Sums<2 * W> operator()(std::int64_t group, std::int64_t pack, std::int64_t row,
                                  std::int64_t stride, std::int64_t count) const {
    const T* top = x + group * rows * channels + pack * kWidth<W>;
    const T* from = top + row * channels;
    const Pack<T, W> first = load_pack<W>(top), own = load_pack<W>(from);
    C center[W], u[W] = {}, v[W] = {};
    for (std::size_t c = 0; c < W; ++c) center[c] = widened<C>(own.at[c]);
    each_pack<4, W>(from, stride * channels, count, [&](const Pack<T, W>& in, std::size_t) {
      for (std::size_t c = 0; c < W; ++c) {
        const C d = widened<C>(in.at[c]) - center[c];
        u[c] += d;
        v[c] += d * d;
      }
    });
    Sums<2 * W> out;
    const auto n = static_cast<double>(count);
    for (std::size_t c = 0; c < W; ++c) {
      const double move = static_cast<double>(center[c]) - widened<double>(first.at[c]);
      const auto sum = static_cast<double>(u[c]), squares = static_cast<double>(v[c]);
      out.at[2 * c] = n * move + sum;
      out.at[2 * c + 1] = n * move * move + 2 * move * sum + squares;
    }
    return out;
  }
};

/// pairs[group][chunk][channel] of two sums, from MomentRows or GradientRows.
template <std::size_t W>
struct StorePairs {
  double* pairs;
  std::int64_t chunks, channels;

  DKFAC_HD void operator()(std::int64_t group, std::int64_t chunk, std::int64_t pack,
                           const Sums<2 * W>& sums) const {
    double* to = pairs + 2 * ((group * chunks + chunk) * channels + pack * kWidth<W>);
    for (std::size_t c = 0; c < W; ++c)
      store_pack<2>(to + 2 * c, Pack<double, 2>{sums.at[2 * c], sums.at[2 * c + 1]});
  }
};
struct PairRows {
  const double* pairs;
  std::int64_t chunks, channels;

  DKFAC_HD Sums<2> operator()(std::int64_t group, std::int64_t channel, std::int64_t chunk,
                              std::int64_t stride, std::int64_t count) const {
    const double* from = pairs + 2 * ((group * chunks + chunk) * channels + channel);
    Sums<2> out{};
    DKFAC_UNROLL
    for (std::int64_t k = 0; k < count; ++k) {
      const Pack<double, 2> pair = load_pack<2>(from + 2 * k * stride * channels);
      out.at[0] += pair.at[0];
      out.at[1] += pair.at[1];
    }
    return out;
  }
};

/// Computes mean, rest and variance from the sums of MomentRows.
template <class T>
struct FinishSums {
  using C = Computed<T>;
  const T* x;
  std::int64_t rows, channels;
  C *mean, *rest;
  double* variance;

  DKFAC_HD void operator()(std::int64_t group, std::int64_t, std::int64_t channel,
                           const Sums<2>& sums) const {
    const auto pivot = widened<double>(x[group * rows * channels + channel]);
    const auto n = static_cast<double>(rows);
    const double shift = sums.at[0] / n, around = pivot + shift;
    const double var = (sums.at[1] - sums.at[0] * shift) / n;
    const std::int64_t i = group * channels + channel;
    mean[i] = static_cast<C>(around);
    rest[i] = static_cast<C>(around - static_cast<double>(mean[i]));
    variance[i] = var < 0.0 ? 0.0 : var;  // NaN stays NaN.
  }
};

/// For a single group, also computes the results that follow for its channel.
template <class T>
struct FinishGroup {
  FinishSums<T> sums;
  FinishMoments<Computed<T>> moments;

  DKFAC_HD void operator()(std::int64_t group, std::int64_t chunk, std::int64_t channel,
                           const Sums<2>& of_channel) const {
    sums(group, chunk, channel, of_channel);
    moments(channel);
  }
};

struct StoreTwo {
  double *first, *second;
  std::int64_t channels;
  DKFAC_HD void operator()(std::int64_t group, std::int64_t, std::int64_t channel,
                           const Sums<2>& sums) const {
    first[group * channels + channel] = sums.at[0];
    second[group * channels + channel] = sums.at[1];
  }
};

/// For a single group, also computes the gradients that follow for its channel.
template <class C>
struct StoreGradients {
  StoreTwo sums;
  NormGradients<C> gradients;

  DKFAC_HD void operator()(std::int64_t group, std::int64_t chunk, std::int64_t channel,
                           const Sums<2>& of_channel) const {
    sums(group, chunk, channel, of_channel);
    gradients(channel);
  }
};

template <class C>
[[nodiscard]] CeluOf<C> celu_of(const Activation& activation) {
  return {static_cast<C>(activation.alpha), static_cast<C>(1 / activation.alpha)};
}

/// y = activation((x - mean) * scale + shift + addend), for the rows of one thread.
template <class T, std::size_t W>
struct Normalize {
  using C = Computed<T>;
  ColumnShares shares;
  const T *x, *addend;  ///< Null without an addend.
  T* y;
  AffineValues<C> affine;
  ActivationKind kind;
  CeluOf<C> celu;
  std::uint8_t* signs = nullptr;  ///< Signs of OutputGrad, only with whole packs. Null: not needed.

  DKFAC_HD void operator()(std::int64_t thread) const {
    const ColumnShares::Place at = shares.place(thread);
    const std::int64_t channels = shares.packs * kWidth<W>;
    const std::int64_t channel = at.pack * kWidth<W>;
    const std::int64_t of_group = at.group * channels + channel;
    C mean[W], rest[W], scale[W], shift[W];
    take_channels(affine.mean + of_group, affine.aligned, mean);
    take_channels(affine.rest + of_group, affine.aligned, rest);
    take_channels(affine.scale + of_group, affine.aligned, scale);
    take_channels(affine.shift + of_group, affine.aligned, shift);
    const std::int64_t first = (at.group * shares.rows + at.row) * channels + channel;
    const std::int64_t stride = shares.depth * channels;
    each_batch<4>(at.count, [&](auto some, std::size_t k) {
      constexpr std::size_t kRows = decltype(some)::value;
      Pack<T, W> in[kRows], plus[kRows];
      DKFAC_UNROLL
      for (std::size_t j = 0; j < kRows; ++j) {
        in[j] = load_pack<W>(x + first + offset_of(k + j, stride));
        plus[j] =
            addend != nullptr ? load_pack<W>(addend + first + offset_of(k + j, stride)) : in[j];
      }
      DKFAC_UNROLL
      for (std::size_t j = 0; j < kRows; ++j) {
        C value[W];
        for (std::size_t c = 0; c < W; ++c)
          value[c] = ((widened<C>(in[j].at[c]) - mean[c]) - rest[c]) * scale[c] + shift[c];
        if (addend != nullptr)
          for (std::size_t c = 0; c < W; ++c) value[c] += widened<C>(plus[j].at[c]);
        activate(value);
        Pack<T, W> out;
        for (std::size_t c = 0; c < W; ++c) out.at[c] = rounded<T>(value[c]);
        const std::int64_t i = first + offset_of(k + j, stride);
        store_pack<W>(y + i, out);
        if (signs != nullptr) signs[i / kWidth<W>] = signs_of(out);
      }
    });
  }
  /// Signs of the stored values, as rounding may give 0.
  [[nodiscard]] DKFAC_HD static std::uint8_t signs_of(const Pack<T, W>& out) {
    unsigned bits = 0;
    for (std::size_t c = 0; c < W; ++c)
      bits |= (widened<C>(out.at[c]) > C{0} ? 1U : 0U) << static_cast<unsigned>(c);
    return static_cast<std::uint8_t>(bits);
  }
  DKFAC_HD void activate(C (&value)[W]) const {
    if (kind == ActivationKind::relu) {
      for (std::size_t c = 0; c < W; ++c) value[c] = Rectify<C>{}.value(value[c]);
    } else if (kind == ActivationKind::celu) {
      for (std::size_t c = 0; c < W; ++c) value[c] = celu.value(value[c]);
    }
  }
};

}  // namespace dkfac::nn::cuda
