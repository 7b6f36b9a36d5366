#include <algorithm>
#include <array>
#include <cmath>

#include "nn/backends/backend_normalize.h"
#include "nn/backends/cpu/parallel.h"
#include "nn/backends/cpu/storage.h"
#include "nn/backends/dtype.h"

namespace dkfac::nn::cpu {
namespace {

/// Sum of term(k) over a row, in SIMD lanes; the order depends only on the width.
template <class Term>
double sum_over_row(std::int64_t width, const Term& term) {
  constexpr std::int64_t kLanes = 8;
  std::array<double, static_cast<std::size_t>(kLanes)> lanes{};
  std::int64_t k = 0;
  for (; k + kLanes <= width; k += kLanes)
    for (std::int64_t lane = 0; lane < kLanes; ++lane)
      lanes[static_cast<std::size_t>(lane)] += term(k + lane);
  for (std::int64_t lane = 0; k + lane < width; ++lane)
    lanes[static_cast<std::size_t>(lane)] += term(k + lane);
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

/// A row of x with its statistics.
template <class T>
struct NormalizedRow {
  const T* x;
  Computed<T> mean, inv_std;

  NormalizedRow(ConstTensorView of, ConstTensorView means, ConstTensorView inv_stds,
                std::int64_t row)
      : x(of.data<T>() + row * of.dim(1)),
        mean(means.data<Computed<T>>()[row]),
        inv_std(inv_stds.data<Computed<T>>()[row]) {}
  [[nodiscard]] Computed<T> at(std::int64_t k) const { return (load(x[k]) - mean) * inv_std; }
};

/// Largest number of parts in which rows are summed. The parts depend only on the number of rows,
/// so the sum is bitwise identical at every number of threads.
constexpr std::int64_t kMostParts = 16;

}  // namespace

void normalize_rows(Context&, double epsilon, ConstTensorView x, ConstTensorView gamma,
                    ConstTensorView beta, TensorView mean, TensorView inv_std, TensorView y) {
  const std::int64_t channels = x.dim(1);
  visit_floating(x.dtype(), [&]<class T>(Type<T>) {
    using C = Computed<T>;
    const C *scale = gamma.data<C>(), *shift = beta.data<C>();
    const auto n = static_cast<double>(channels);
    each(x.dim(0), 4 * channels, [&](std::int64_t row) {
      const T* in = x.data<T>() + row * channels;
      const auto value = [&](std::int64_t k) { return static_cast<double>(load(in[k])); };
      const double center = sum_over_row(channels, value) / n;
      const double variance = sum_over_row(channels,
                                           [&](std::int64_t k) {
                                             const double d = value(k) - center;
                                             return d * d;
                                           }) /
                              n;
      mean.data<C>()[row] = static_cast<C>(center);
      inv_std.data<C>()[row] = static_cast<C>(1 / std::sqrt(variance + epsilon));
      const NormalizedRow<T> normalized(x, mean, inv_std, row);
      T* out = y.data<T>() + row * channels;
      for (std::int64_t k = 0; k < channels; ++k)
        out[k] = store<T>(normalized.at(k) * scale[k] + shift[k]);
    });
  });
}

void row_norm_gradients(Context& ctx, ConstTensorView x, ConstTensorView mean,
                        ConstTensorView inv_std, ConstTensorView dy, TensorView scale_grad,
                        TensorView shift_grad) {
  const std::int64_t rows = x.dim(0), channels = x.dim(1);
  const std::int64_t parts = std::clamp<std::int64_t>(rows, 1, kMostParts);
  Scratch scratch(ctx);
  double* partial = scratch.take(Shape{parts, 2, channels}, DType::f64).data<double>();
  visit_floating(x.dtype(), [&]<class T>(Type<T>) {
    using C = Computed<T>;
    dkfac::cpu::parallel_parts(static_cast<int>(parts), [&](int part) {
      double* scale_sum = partial + part * 2 * channels;
      double* shift_sum = scale_sum + channels;
      std::fill_n(scale_sum, 2 * channels, 0.0);
      for (std::int64_t row = rows * part / parts; row < rows * (part + 1) / parts; ++row) {
        const NormalizedRow<T> normalized(x, mean, inv_std, row);
        const T* g = dy.data<T>() + row * channels;
#pragma GCC ivdep
        for (std::int64_t k = 0; k < channels; ++k) {
          const auto gradient = static_cast<double>(load(g[k]));
          scale_sum[k] += gradient * static_cast<double>(normalized.at(k));
          shift_sum[k] += gradient;
        }
      }
    });
    for (std::int64_t k = 0; k < channels; ++k) {
      double scale_sum = 0, shift_sum = 0;
      for (std::int64_t part = 0; part < parts; ++part) {
        scale_sum += partial[part * 2 * channels + k];
        shift_sum += partial[(part * 2 + 1) * channels + k];
      }
      scale_grad.data<C>()[k] = static_cast<C>(scale_sum);
      shift_grad.data<C>()[k] = static_cast<C>(shift_sum);
    }
  });
}

void normalize_rows_backward(Context&, ConstTensorView x, ConstTensorView gamma,
                             ConstTensorView mean, ConstTensorView inv_std, ConstTensorView dy,
                             TensorView dx) {
  const std::int64_t channels = x.dim(1);
  visit_floating(x.dtype(), [&]<class T>(Type<T>) {
    using C = Computed<T>;
    const C* scale = gamma.data<C>();
    const auto n = static_cast<double>(channels);
    each(x.dim(0), 4 * channels, [&](std::int64_t row) {
      const NormalizedRow<T> normalized(x, mean, inv_std, row);
      const T* from = dy.data<T>() + row * channels;
      const auto gradient = [&](std::int64_t k) { return load(from[k]) * scale[k]; };
      const double sum =
          sum_over_row(channels, [&](std::int64_t k) { return static_cast<double>(gradient(k)); });
      const double product = sum_over_row(channels, [&](std::int64_t k) {
        return static_cast<double>(gradient(k)) * static_cast<double>(normalized.at(k));
      });
      const C mean_g = static_cast<C>(sum / n), mean_product = static_cast<C>(product / n);
      T* out = dx.data<T>() + row * channels;
      for (std::int64_t k = 0; k < channels; ++k) {
        const C centered = (gradient(k) - mean_g) - normalized.at(k) * mean_product;
        out[k] = store<T>(centered * normalized.inv_std);
      }
    });
  });
}

}  // namespace dkfac::nn::cpu
