#pragma once

#include <cstddef>
#include <cstdint>

#include "core/shared/cuda/convert.h"
#include "core/shared/cuda/device_code.h"
#include "nn/backends/activate.h"
#include "nn/backends/cuda/channel_packs.h"
#include "nn/backends/cuda/columns.h"
#include "nn/backends/cuda/normalize_functors.h"
#include "nn/backends/dtype.h"
#include "nn/backends/norm_shape.h"

/// Gradients of batch normalisation over x[groups,rows,channels], W channels at a time
/// (backend_normalize.h). W is kPack<T>, or 1 where that does not divide the channels.
namespace dkfac::nn::cuda {

/// Where the gradient before the activation comes from (OutputGrad).
enum class GradientFrom : std::uint8_t { dy, relu_output, relu_signs, celu_output, relu_input };

template <class T>
struct GradientReader {
  using C = Computed<T>;
  const T *dy, *y;
  const T* addend;  ///< Null: none.
  const std::uint8_t* signs;
  GradientFrom from;
  CeluOf<C> celu;

  explicit GradientReader(const OutputGrad& grad)
      : dy(grad.dy.data<T>()),
        y(grad.y.empty() ? nullptr : grad.y.data<T>()),
        addend(grad.addend.empty() ? nullptr : grad.addend.data<T>()),
        signs(static_cast<const std::uint8_t*>(grad.signs.raw())),
        from(choose(grad)),
        celu(celu_of<C>(grad.activation)) {}

  [[nodiscard]] static GradientFrom choose(const OutputGrad& grad) {
    if (grad.activation.kind == ActivationKind::none) return GradientFrom::dy;
    if (grad.activation.kind == ActivationKind::celu) return GradientFrom::celu_output;
    if (!grad.signs.empty()) return GradientFrom::relu_signs;
    return grad.y.empty() ? GradientFrom::relu_input : GradientFrom::relu_output;
  }
  [[nodiscard]] DKFAC_HD bool reads_y() const {
    return from == GradientFrom::relu_output || from == GradientFrom::celu_output;
  }
  /// Bit c is the sign of y at element i + c, for W elements within a pack. 0 where there are no
  /// signs.
  template <std::size_t W>
  [[nodiscard]] DKFAC_HD unsigned signs_at(std::int64_t i) const {
    if (from != GradientFrom::relu_signs) return 0;
    constexpr auto kWhole = static_cast<std::int64_t>(kPack<T>);
    const unsigned bits = signs[i / kWhole];
    if constexpr (W == kPack<T>) return bits;
    return bits >> static_cast<unsigned>(i % kWhole);
  }
  [[nodiscard]] DKFAC_HD bool reads_affine() const { return from == GradientFrom::relu_input; }

  /// Computes g[c] from packs of dy and further inputs. If reads_y(), these are packs of y, or bits
  /// as signs_at() gives them; if reads_affine(), centered = x - mean, scale and shift.
  template <std::size_t W>
  DKFAC_HD void gradient(const Pack<T, W>& dy_pack, const Pack<T, W>& y_pack, unsigned bits,
                         const C (&centered)[W], const C (&scale)[W], const C (&shift)[W],
                         C (&g)[W]) const {
    for (std::size_t c = 0; c < W; ++c) g[c] = widened<C>(dy_pack.at[c]);
    switch (from) {
      case GradientFrom::dy:
        return;
      case GradientFrom::relu_output:
        for (std::size_t c = 0; c < W; ++c)
          g[c] = Rectify<C>{}.backward(widened<C>(y_pack.at[c]), g[c]);
        return;
      case GradientFrom::relu_signs:
        for (std::size_t c = 0; c < W; ++c)
          g[c] = ((bits >> static_cast<unsigned>(c)) & 1U) != 0 ? g[c] : C{0};
        return;
      case GradientFrom::celu_output:
        for (std::size_t c = 0; c < W; ++c) g[c] = celu.backward(widened<C>(y_pack.at[c]), g[c]);
        return;
      case GradientFrom::relu_input:
        for (std::size_t c = 0; c < W; ++c)
          g[c] = Rectify<C>{}.backward(centered[c] * scale[c] + shift[c], g[c]);
        return;
    }
  }
};

/// Sums of g and of g * (x - mean) over a thread's rows, in the type that x is computed in; g
/// itself goes to `masked` unless that is null. `masked` may be the memory of the addend, as a
/// thread reads an element before it writes it.
template <class T, std::size_t W>
struct GradientRows {
  using C = Computed<T>;
  const T* x;
  std::int64_t rows, channels;
  AffineValues<C> affine;
  GradientReader<T> reader;
  T* masked;

  DKFAC_HD Sums<2 * W> operator()(std::int64_t group, std::int64_t pack, std::int64_t row,
                                  std::int64_t stride, std::int64_t count) const {
    const std::int64_t channel = pack * kWidth<W>;
    const std::int64_t of_group = group * channels + channel;
    C mean[W], rest[W], scale[W] = {}, shift[W] = {}, u[W] = {}, v[W] = {};
    take_channels(affine.mean + of_group, affine.aligned, mean);
    take_channels(affine.rest + of_group, affine.aligned, rest);
    if (reader.reads_affine()) {
      take_channels(affine.scale + of_group, affine.aligned, scale);
      take_channels(affine.shift + of_group, affine.aligned, shift);
    }
    const std::int64_t first = (group * rows + row) * channels + channel;
    each_batch<2>(count, [&](auto some, std::size_t k) {
      constexpr std::size_t kRows = decltype(some)::value;
      Pack<T, W> in[kRows], dy[kRows], y[kRows];
      unsigned signs[kRows];
      DKFAC_UNROLL
      for (std::size_t j = 0; j < kRows; ++j) {
        const std::int64_t i = first + offset_of(k + j, stride * channels);
        in[j] = load_pack<W>(x + i);
        dy[j] = load_sum<W>(reader.dy, reader.addend, i);
        y[j] = reader.reads_y() ? load_pack<W>(reader.y + i) : dy[j];
        signs[j] = reader.template signs_at<W>(i);
      }
      DKFAC_UNROLL
      for (std::size_t j = 0; j < kRows; ++j) {
        C centered[W], g[W];
        for (std::size_t c = 0; c < W; ++c)
          centered[c] = (widened<C>(in[j].at[c]) - mean[c]) - rest[c];
        reader.gradient(dy[j], y[j], signs[j], centered, scale, shift, g);
        for (std::size_t c = 0; c < W; ++c) {
          u[c] += g[c];
          v[c] += g[c] * centered[c];
        }
        if (masked == nullptr) continue;
        Pack<T, W> out;
        for (std::size_t c = 0; c < W; ++c) out.at[c] = rounded<T>(g[c]);
        store_pack<W>(masked + first + offset_of(k + j, stride * channels), out);
      }
    });
    Sums<2 * W> out;
    for (std::size_t c = 0; c < W; ++c) {
      out.at[2 * c] = static_cast<double>(u[c]);
      out.at[2 * c + 1] = static_cast<double>(v[c]);
    }
    return out;
  }
};

/// GradientRows over the positions of one sample, with the statistics of its group.
template <class T, std::size_t W>
struct SampleGradientRows {
  GradientRows<T, W> of_group;
  std::int64_t positions, per_group;  ///< Rows of a sample, samples of a group.

  DKFAC_HD Sums<2 * W> operator()(std::int64_t sample, std::int64_t pack, std::int64_t row,
                                  std::int64_t stride, std::int64_t count) const {
    const std::int64_t group = dkfac::cuda::quotient(sample, per_group);
    return of_group(group, pack, (sample - group * per_group) * positions + row, stride, count);
  }
};

/// Stores [samples,2,channels], the gradients of scale and shift for each sample, from the sums of
/// SampleGradientRows.
template <class C, std::size_t W>
struct StoreSampleGradients {
  C* to;
  const C* inv_std;
  std::int64_t channels, per_group;

  DKFAC_HD void operator()(std::int64_t sample, std::int64_t, std::int64_t pack,
                           const Sums<2 * W>& sums) const {
    const std::int64_t channel = pack * kWidth<W>;
    const C* inverse = inv_std + dkfac::cuda::quotient(sample, per_group) * channels + channel;
    C* of_scale = to + 2 * sample * channels + channel;
    C* of_shift = of_scale + channels;
    for (std::size_t c = 0; c < W; ++c) {
      of_scale[c] = static_cast<C>(sums.at[2 * c + 1] * static_cast<double>(inverse[c]));
      of_shift[c] = static_cast<C>(sums.at[2 * c]);
    }
  }
};
/// Adds them up over samples, to the sums that GradientRows has of all their rows.
template <class C>
struct SampleRows {
  const C *from, *inv_std;
  std::int64_t channels, per_group;

  DKFAC_HD Sums<2> operator()(std::int64_t group, std::int64_t channel, std::int64_t sample,
                              std::int64_t stride, std::int64_t count) const {
    const C* of_scale = from + 2 * (group * per_group + sample) * channels + channel;
    Sums<2> out{};
    DKFAC_UNROLL
    for (std::int64_t k = 0; k < count; ++k) {
      const C* at = of_scale + 2 * k * stride * channels;
      out.at[0] += static_cast<double>(at[channels]);
      out.at[1] += static_cast<double>(at[0]);
    }
    out.at[1] /= static_cast<double>(inv_std[group * channels + channel]);
    return out;
  }
};

/// dx = a*g + b*(x - mean) + c, for the rows of one thread.
template <class T, std::size_t W>
struct NormalizeBackward {
  using C = Computed<T>;
  ColumnShares shares;
  const T* x;
  T* dx;
  AffineValues<C> affine;
  GradientReader<T> reader;
  const C *a, *b, *c;
  bool aligned;  ///< a, b and c.

  DKFAC_HD void operator()(std::int64_t thread) const {
    const ColumnShares::Place at = shares.place(thread);
    const std::int64_t channels = shares.packs * kWidth<W>;
    const std::int64_t channel = at.pack * kWidth<W>;
    const std::int64_t of_group = at.group * channels + channel;
    C mean[W], rest[W], scale[W] = {}, shift[W] = {}, of_g[W], of_x[W], constant[W];
    take_channels(affine.mean + of_group, affine.aligned, mean);
    take_channels(affine.rest + of_group, affine.aligned, rest);
    if (reader.reads_affine()) {
      take_channels(affine.scale + of_group, affine.aligned, scale);
      take_channels(affine.shift + of_group, affine.aligned, shift);
    }
    take_channels(a + of_group, aligned, of_g);
    take_channels(b + of_group, aligned, of_x);
    take_channels(c + of_group, aligned, constant);
    const std::int64_t first = (at.group * shares.rows + at.row) * channels + channel;
    const std::int64_t stride = shares.depth * channels;
    each_batch<2>(at.count, [&](auto some, std::size_t k) {
      constexpr std::size_t kRows = decltype(some)::value;
      Pack<T, W> in[kRows], dy[kRows], y[kRows];
      unsigned signs[kRows];
      DKFAC_UNROLL
      for (std::size_t j = 0; j < kRows; ++j) {
        const std::int64_t i = first + offset_of(k + j, stride);
        in[j] = load_pack<W>(x + i);
        dy[j] = load_pack<W>(reader.dy + i);
        y[j] = reader.reads_y() ? load_pack<W>(reader.y + i) : dy[j];
        signs[j] = reader.template signs_at<W>(i);
      }
      DKFAC_UNROLL
      for (std::size_t j = 0; j < kRows; ++j) {
        C centered[W], g[W];
        for (std::size_t n = 0; n < W; ++n)
          centered[n] = (widened<C>(in[j].at[n]) - mean[n]) - rest[n];
        reader.gradient(dy[j], y[j], signs[j], centered, scale, shift, g);
        Pack<T, W> out;
        for (std::size_t n = 0; n < W; ++n)
          out.at[n] = rounded<T>(of_g[n] * g[n] + of_x[n] * centered[n] + constant[n]);
        store_pack<W>(dx + first + offset_of(k + j, stride), out);
      }
    });
  }
};

}  // namespace dkfac::nn::cuda
