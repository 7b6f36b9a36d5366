#include <algorithm>
#include <array>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"

#include "core/shared/host.h"
#include "core/shared/parallel.h"
#include "kfac/statistics/backend_statistics.h"

namespace dkfac::kfac::cpu {
namespace {

using dkfac::cpu::parallel_parts;

/// Maximum of partial sums over samples. Their number depends on the number of samples alone, so
/// the sum is bitwise the same for every number of threads.
constexpr std::int64_t kMaxParts = 16;
std::int64_t parts_of(std::int64_t n) { return std::clamp<std::int64_t>(n, 1, kMaxParts); }

/// Sizes and constants of one call. Statistics are converted to f64 [groups,channels], or one per
/// row.
struct Problem {
  std::int64_t n, channels, positions, groups;
  ops::Layout layout;
  NormOver over;
  const double* mean;
  const double* inv_std;
  double sample_scale;
};

/// Sums dy and dy * (x - mean) over positions, per channel, for rows of contiguous channels.
template <class T>
void sum_positions_nhwc(const Problem& p, const T* x, const T* dy, const T* mean, T* sum_dy,
                        T* sum_product) {
  std::fill_n(sum_dy, p.channels, T{0});
  std::fill_n(sum_product, p.channels, T{0});
  for (std::int64_t i = 0; i < p.positions; ++i) {
    const T* x_row = x + i * p.channels;
    const T* dy_row = dy + i * p.channels;
#pragma GCC ivdep
    for (std::int64_t c = 0; c < p.channels; ++c) {
      const T g = dy_row[c];
      sum_dy[c] += g;
      sum_product[c] += g * (x_row[c] - mean[c]);
    }
  }
}

/// Sums dy and dy * (x - mean) * inv_std over positions where each row has its own statistics.
template <class T>
void sum_positions_of_rows(const Problem& p, const T* x, const T* dy, const double* mean,
                           const double* inv_std, T* sum_dy, T* sum_product) {
  std::fill_n(sum_dy, p.channels, T{0});
  std::fill_n(sum_product, p.channels, T{0});
  for (std::int64_t i = 0; i < p.positions; ++i) {
    const T* x_row = x + i * p.channels;
    const T* dy_row = dy + i * p.channels;
    const T m = static_cast<T>(mean[i]), factor = static_cast<T>(inv_std[i]);
#pragma GCC ivdep
    for (std::int64_t c = 0; c < p.channels; ++c) {
      const T g = dy_row[c];
      sum_dy[c] += g;
      sum_product[c] += g * ((x_row[c] - m) * factor);
    }
  }
}

/// Sums dy and dy * (x - mean) over planes of contiguous positions, in lanes so that the sums
/// vectorise.
template <class T>
void sum_positions_nchw(const Problem& p, const T* x, const T* dy, const T* mean, T* sum_dy,
                        T* sum_product) {
  constexpr std::int64_t kLanes = 16;
  using Lanes = std::array<T, static_cast<std::size_t>(kLanes)>;
  for (std::int64_t c = 0; c < p.channels; ++c) {
    const T* x_plane = x + c * p.positions;
    const T* dy_plane = dy + c * p.positions;
    Lanes lanes_dy{}, lanes_product{};
    T* a = lanes_dy.data();
    T* b = lanes_product.data();
    const auto add = [&](std::int64_t lane, std::int64_t i) {
      const T g = dy_plane[i];
      a[lane] += g;
      b[lane] += g * (x_plane[i] - mean[c]);
    };
    std::int64_t i = 0;
    for (; i + kLanes <= p.positions; i += kLanes) {
      for (std::int64_t lane = 0; lane < kLanes; ++lane) add(lane, i + lane);
    }
    for (std::int64_t lane = 0; i + lane < p.positions; ++lane) add(lane, i + lane);
    T total_dy{0}, total_product{0};
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      total_dy += a[lane];
      total_product += b[lane];
    }
    sum_dy[c] = total_dy;
    sum_product[c] = total_product;
  }
}

/// Sink that adds the products of one sample's gradients to partial[part, 3, channels], with rows
/// gamma*gamma, gamma*beta, beta*beta.
struct Products {
  TensorView partial;

  void add(int part, std::int64_t, std::int64_t channel, double gamma, double beta) const {
    const std::int64_t channels = partial.dim(2);
    double* sums = partial.data<double>() + part * 3 * channels + channel;
    sums[0] += gamma * gamma;
    sums[channels] += gamma * beta;
    sums[2 * channels] += beta * beta;
  }
};

/// Sink that stores the gradients: rows[sample] = [gamma of all channels, beta of all channels], or
/// beta alone.
template <class T>
struct Gradients {
  TensorView rows;
  std::int64_t channels;

  void add(int, std::int64_t sample, std::int64_t channel, double gamma, double beta) const {
    T* row = rows.data<T>() + sample * rows.dim(1) + channel;
    if (rows.dim(1) > channels) {
      row[0] = static_cast<T>(gamma);
      row += channels;
    }
    row[0] = static_cast<T>(beta);
  }
};

/// Passes the gradients of all samples to `sink`, in `parts` parts that run in parallel. `first` is
/// the index in the batch of the first sample of x.
template <class T, class Sink>
void visit_samples(Context& ctx, const Problem& p, std::int64_t first, ConstTensorView x,
                   ConstTensorView dy, std::int64_t parts, const Sink& sink) {
  const std::int64_t count = x.dim(0);
  const std::int64_t step = (count + parts - 1) / parts;
  Scratch scratch(ctx);
  // Per part: sums of dy, sums of products, and the group's mean in the type of the loop.
  const TensorView work = scratch.take({parts, 3, p.channels}, dtype_of<T>);
  parallel_parts(static_cast<int>(parts), [&](int part) {
    T* sum_dy = work.data<T>() + part * 3 * p.channels;
    T* sum_product = sum_dy + p.channels;
    T* mean = sum_product + p.channels;
    const std::int64_t end = std::min((part + 1) * step, count);
    for (std::int64_t sample = part * step; sample < end; ++sample) {
      const std::int64_t offset = sample * p.positions * p.channels;
      if (p.over == NormOver::channels) {
        const std::int64_t row = (first + sample) * p.positions;
        sum_positions_of_rows(p, x.data<T>() + offset, dy.data<T>() + offset, p.mean + row,
                              p.inv_std + row, sum_dy, sum_product);
        for (std::int64_t c = 0; c < p.channels; ++c)
          sink.add(part, first + sample, c, p.sample_scale * static_cast<double>(sum_product[c]),
                   p.sample_scale * static_cast<double>(sum_dy[c]));
        continue;
      }
      const std::int64_t statistics = (first + sample) * p.groups / p.n * p.channels;
      std::transform(p.mean + statistics, p.mean + statistics + p.channels, mean,
                     [](double m) { return static_cast<T>(m); });
      const auto sum_positions =
          p.layout == ops::Layout::nhwc ? sum_positions_nhwc<T> : sum_positions_nchw<T>;
      sum_positions(p, x.data<T>() + offset, dy.data<T>() + offset, mean, sum_dy, sum_product);
      for (std::int64_t c = 0; c < p.channels; ++c) {
        const double gamma =
            p.sample_scale * p.inv_std[statistics + c] * static_cast<double>(sum_product[c]);
        sink.add(part, first + sample, c, gamma, p.sample_scale * static_cast<double>(sum_dy[c]));
      }
    }
  });
}

/// Like visit_samples(), for 16-bit data, which is widened in panels of samples that stay in a
/// cache until they are read.
template <class Sink>
void visit_widened_samples(Context& ctx, const Problem& p, ConstTensorView x, ConstTensorView dy,
                           std::int64_t parts, const Sink& sink) {
  constexpr std::int64_t kPanelElements = std::int64_t{1} << 18;
  const std::int64_t sample_elements = std::max<std::int64_t>(1, p.positions * p.channels);
  const std::int64_t step = std::max<std::int64_t>(kMaxParts, kPanelElements / sample_elements);
  for (std::int64_t first = 0; first < p.n; first += step) {
    const std::int64_t count = std::min(step, p.n - first);
    Scratch scratch(ctx);
    const auto widen = [&](ConstTensorView data) {
      const ConstTensorView panel = data.slice(0, first, count);
      const TensorView wide = scratch.take(panel.shape(), DType::f32);
      ops::cast(ctx, panel, wide);
      return wide;
    };
    visit_samples<float>(ctx, p, first, widen(x), widen(dy), parts, sink);
  }
}

template <class Sink>
void visit_all_samples(Context& ctx, const Problem& p, ConstTensorView x, ConstTensorView dy,
                       const Sink& sink) {
  const std::int64_t parts = parts_of(p.n);
  switch (x.dtype()) {
    case DType::f64:
      return visit_samples<double>(ctx, p, 0, x, dy, parts, sink);
    case DType::f32:
      return visit_samples<float>(ctx, p, 0, x, dy, parts, sink);
    case DType::f16:
    case DType::bf16:
      return visit_widened_samples(ctx, p, x, dy, parts, sink);
    case DType::i32:
      break;
  }
  DKFAC_CHECK(false, "[norm Fisher] x is ", x.dtype(), "; it must be a floating type");
}

/// fisher = beta*fisher + scale * sum of the parts, in part order.
void merge(ConstTensorView partial, double scale, double beta, TensorView fisher) {
  const std::int64_t channels = fisher.dim(1), rows = fisher.dim(0);
  const double* sums = partial.data<double>();
  with_real(kNormFisher, fisher.dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (std::int64_t r = 0; r < rows; ++r) {
      // Parts have all three rows; a single row of `fisher` is that of beta.
      const std::int64_t row = rows == 1 ? 2 : rows == 2 ? 2 * r : r;
      T* out = fisher.data<T>() + r * fisher.stride(0);
      for (std::int64_t c = 0; c < channels; ++c) {
        double total = 0;
        for (std::int64_t part = 0; part < partial.dim(0); ++part) {
          total += sums[(part * 3 + row) * channels + c];
        }
        const double old = beta == 0 ? 0 : beta * static_cast<double>(out[c]);
        out[c] = static_cast<T>(old + scale * total);
      }
    }
  });
}

ConstTensorView as_f64(Context& ctx, Scratch& scratch, ConstTensorView x) {
  const TensorView wide = scratch.take(x.shape(), DType::f64);
  ops::cast(ctx, x, wide);
  return wide;
}

Problem problem_of(Context& ctx, Scratch& scratch, const NormData& data) {
  return {data.n,
          data.channels,
          data.positions,
          data.groups,
          data.layout,
          data.over,
          as_f64(ctx, scratch, data.mean).data<double>(),
          as_f64(ctx, scratch, data.inv_std).data<double>(),
          data.sample_scale};
}

}  // namespace

void norm_gradients(Context& ctx, const NormData& data, TensorView rows) {
  Scratch scratch(ctx);
  const Problem problem = problem_of(ctx, scratch, data);
  with_real(kNormFisher, rows.dtype(), [&](auto zero) {
    const Gradients<decltype(zero)> sink{rows, data.channels};
    visit_all_samples(ctx, problem, data.x, data.dy, sink);
  });
}

void norm_products(Context& ctx, const NormData& data, double scale, double beta,
                   TensorView fisher) {
  Scratch scratch(ctx);
  const Problem problem = problem_of(ctx, scratch, data);
  const TensorView partial = scratch.take({parts_of(data.n), 3, data.channels}, DType::f64);
  ops::fill(ctx, partial, 0);
  visit_all_samples(ctx, problem, data.x, data.dy, Products{partial});
  merge(partial, scale, beta, fisher);
}

void products_of_samples(Context& ctx, ConstTensorView gradients, double sample_scale, double scale,
                         double beta, TensorView fisher) {
  const std::int64_t n = gradients.dim(0), channels = fisher.dim(1), parts = parts_of(n);
  const std::int64_t step = (n + parts - 1) / parts;
  Scratch scratch(ctx);
  const TensorView partial = scratch.take({parts, 3, channels}, DType::f64);
  ops::fill(ctx, partial, 0);
  with_real(kNormFisher, gradients.dtype(), [&](auto zero) {
    using R = decltype(zero);
    parallel_parts(static_cast<int>(parts), [&](int part) {
      const Products sink{partial};
      for (std::int64_t i = part * step; i < std::min((part + 1) * step, n); ++i) {
        const R* gamma = gradients.data<R>() + 2 * i * channels;
        const R* beta_of = gamma + channels;
        for (std::int64_t c = 0; c < channels; ++c)
          sink.add(part, i, c, sample_scale * static_cast<double>(gamma[c]),
                   sample_scale * static_cast<double>(beta_of[c]));
      }
    });
  });
  merge(partial, scale, beta, fisher);
}

}  // namespace dkfac::kfac::cpu
