#include "nn/cpu/normalize.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "nn/cpu/parallel.h"
#include "nn/dtype.h"

#include DKFAC_SIMD_HEADER

namespace dkfac::nn::cpu {
namespace {

/// Elements of a row that are summed side by side, in registers.
constexpr std::int64_t kStrip = 64;
/// Rows that are summed in the type of the data before the sum goes to f64.
constexpr std::int64_t kShortRun = 64;
constexpr std::int64_t kChunkElements = 16384;

/// How one group is walked. Few channels would leave vectors empty, so several rows are taken as
/// one line of `width` elements; what is left at the end of the group is the tail.
struct Lines {
  explicit Lines(const NormShape& s)
      : width(s.channels < kStrip ? std::lcm(s.channels, kStrip) : s.channels),
        count(s.rows * s.channels / width),
        tail(s.rows * s.channels % width),
        per_chunk(std::max(kChunkElements / width, kShortRun)),
        chunks(std::max<std::int64_t>((count + per_chunk - 1) / per_chunk, 1)) {}
  std::int64_t width;
  std::int64_t count;
  std::int64_t tail;
  std::int64_t per_chunk;
  std::int64_t chunks;
};

/// [groups,c] -> [groups,width]: channel values repeated along a line.
template <class T>
const T* along_lines(Scratch& scratch, const NormShape& s, const Lines& lines, ConstTensorView x) {
  const TensorView out = scratch.take(Shape{s.groups, lines.width}, dtype_of<T>);
  const T* from = x.data<T>();
  T* to = out.data<T>();
  for (std::int64_t g = 0; g < s.groups; ++g) {
    for (std::int64_t j = 0; j < lines.width; ++j) {
      to[g * lines.width + j] = from[g * s.channels + j % s.channels];
    }
  }
  return to;
}

/// Two sums per element of a line, over `count` lines of which `length` elements from `first` on
/// are looked at. term(i, j, u, v) gives what element i of the data, j of the line, adds.
template <class T, class Term>
inline void strip_sums(std::int64_t width, std::int64_t first, std::int64_t length,
                       std::int64_t count, const Term& term, double* sum_u, double* sum_v) {
  for (std::int64_t from = 0; from < count; from += kShortRun) {
    const std::int64_t to = from + kShortRun < count ? from + kShortRun : count;
    std::array<T, kStrip> u{}, v{};
    for (std::int64_t line = from; line < to; ++line) {
      const std::int64_t start = line * width + first;
      if (length == kStrip) {
        for (std::int64_t j = 0; j < kStrip; ++j) {
          const auto k = static_cast<std::size_t>(j);
          T du, dv;
          term(start + j, first + j, du, dv);
          u[k] += du;
          v[k] += dv;
        }
      } else {
        for (std::int64_t j = 0; j < length; ++j) {
          const auto k = static_cast<std::size_t>(j);
          T du, dv;
          term(start + j, first + j, du, dv);
          u[k] += du;
          v[k] += dv;
        }
      }
    }
    for (std::int64_t j = 0; j < length; ++j) {
      sum_u[first + j] += static_cast<double>(u[static_cast<std::size_t>(j)]);
      sum_v[first + j] += static_cast<double>(v[static_cast<std::size_t>(j)]);
    }
  }
}

/// Sums of one chunk of lines, and of the tail behind the last one, into u and v [width].
template <class T, class Term>
inline void chunk_sums(const Lines& lines, std::int64_t chunk, const Term& term, double* u,
                       double* v) {
  for (std::int64_t j = 0; j < lines.width; ++j) u[j] = v[j] = 0.0;
  const std::int64_t first_line = chunk * lines.per_chunk;
  const std::int64_t left = lines.count - first_line;
  const std::int64_t count = left < lines.per_chunk ? left : lines.per_chunk;
  const std::int64_t offset = first_line * lines.width;
  const auto moved = [&](std::int64_t i, std::int64_t j, T& du, T& dv) {
    term(i + offset, j, du, dv);
  };
  for (std::int64_t first = 0; first < lines.width; first += kStrip) {
    const std::int64_t rest = lines.width - first;
    strip_sums<T>(lines.width, first, rest < kStrip ? rest : kStrip, count, moved, u, v);
  }
  if (chunk + 1 < lines.chunks) return;
  for (std::int64_t j = 0; j < lines.tail; ++j) {
    T du, dv;
    term(lines.count * lines.width + j, j, du, dv);
    u[j] += static_cast<double>(du);
    v[j] += static_cast<double>(dv);
  }
}

/// Sums over the rows of each group of two terms; results f64 [groups,c].
/// make_term(group) returns the term for data that starts with that group.
template <class T, class MakeTerm>
void group_sums(Context& ctx, const NormShape& s, const Lines& lines, const MakeTerm& make_term,
                double* result_u, double* result_v) {
  Scratch scratch(ctx);
  const std::int64_t parts = s.groups * lines.chunks;
  double* partial = scratch.take(Shape{parts, 2, lines.width}, DType::f64).data<double>();
  parallel_for(parts, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t part = begin; part < end; ++part) {
      const auto term = make_term(part / lines.chunks);
      double* u = partial + part * 2 * lines.width;
      dkfac::cpu::vectorized(
          [&] { chunk_sums<T>(lines, part % lines.chunks, term, u, u + lines.width); });
    }
  });
  std::fill_n(result_u, s.groups * s.channels, 0.0);
  std::fill_n(result_v, s.groups * s.channels, 0.0);
  for (std::int64_t part = 0; part < parts; ++part) {
    const double* u = partial + part * 2 * lines.width;
    const std::int64_t base = part / lines.chunks * s.channels;
    for (std::int64_t j = 0; j < lines.width; ++j) {
      result_u[base + j % s.channels] += u[j];
      result_v[base + j % s.channels] += u[lines.width + j];
    }
  }
}

/// y = f(i, j) for every element i of every group, j its place within a line.
template <class T, class MakeMap>
void map_lines(const NormShape& s, const Lines& lines, const MakeMap& make_map, T* y) {
  const std::int64_t group_size = s.rows * s.channels;
  const std::int64_t units = lines.count + (lines.tail > 0 ? 1 : 0);
  parallel_for(s.groups * units, grain_of(lines.width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t group = begin / units; group * units < end; ++group) {
      const auto map = make_map(group);
      T* out = y + group * group_size;
      const std::int64_t first = std::max(begin - group * units, std::int64_t{0});
      const std::int64_t last = std::min(end - group * units, units);
      dkfac::cpu::vectorized([&] {
        for (std::int64_t unit = first; unit < last; ++unit) {
          const std::int64_t start = unit * lines.width, left = group_size - start;
          const std::int64_t length = left < lines.width ? left : lines.width;
#pragma GCC ivdep
          for (std::int64_t j = 0; j < length; ++j) out[start + j] = map(start + j, j);
        }
      });
    }
  });
}

template <class T>
void batch_moments_of(Context& ctx, const NormShape& s, const T* x, T* mean, T* rest,
                      double* variance) {
  const Lines lines(s);
  const std::int64_t group_size = s.rows * s.channels, all = s.groups * s.channels;
  const auto rows = static_cast<double>(s.rows);
  Scratch scratch(ctx);
  const TensorView origin = scratch.take(Shape{s.groups, s.channels}, dtype_of<T>);
  double* u = scratch.take(Shape{s.groups, s.channels}, DType::f64).data<double>();
  double* v = scratch.take(Shape{s.groups, s.channels}, DType::f64).data<double>();

  // Around the first row of the group: differences of close numbers are exact.
  T* first = origin.data<T>();
  for (std::int64_t g = 0; g < s.groups; ++g) {
    std::copy_n(x + g * group_size, s.channels, first + g * s.channels);
  }
  const T* shift = along_lines<T>(scratch, s, lines, origin);
  group_sums<T>(
      ctx, s, lines,
      [=, &lines](std::int64_t g) {
        return [from = x + g * group_size, o = shift + g * lines.width](
                   std::int64_t i, std::int64_t j, T& du, T& dv) {
          du = from[i] - o[j];
          dv = T{0};
        };
      },
      u, v);
  for (std::int64_t k = 0; k < all; ++k) {
    const double exact = static_cast<double>(first[k]) + u[k] / rows;
    mean[k] = static_cast<T>(exact);
    rest[k] = static_cast<T>(exact - static_cast<double>(mean[k]));
  }

  const T* m = along_lines<T>(scratch, s, lines, view_of(mean, Shape{all}));
  const T* r = along_lines<T>(scratch, s, lines, view_of(rest, Shape{all}));
  group_sums<T>(
      ctx, s, lines,
      [=, &lines](std::int64_t g) {
        return [from = x + g * group_size, mg = m + g * lines.width, rg = r + g * lines.width](
                   std::int64_t i, std::int64_t j, T& du, T& dv) {
          const T d = (from[i] - mg[j]) - rg[j];
          du = d;
          dv = d * d;
        };
      },
      u, v);
  for (std::int64_t k = 0; k < all; ++k) {
    // u is 0 but for rounding; it takes that of the mean out of the squares. NaN stays NaN.
    const double var = (v[k] - u[k] * u[k] / rows) / rows;
    variance[k] = var < 0.0 ? 0.0 : var;
  }
}

}  // namespace

void batch_moments(Context& ctx, const NormShape& shape, ConstTensorView x, TensorView mean,
                   TensorView rest, TensorView variance) {
  for_dtype(x.dtype(), [&](auto t) {
    using T = decltype(t);
    batch_moments_of<T>(ctx, shape, x.data<T>(), mean.data<T>(), rest.data<T>(),
                        variance.data<double>());
  });
}

void normalize(Context& ctx, const NormShape& shape, ConstTensorView x, Mean mean,
               ConstTensorView scale, ConstTensorView shift, TensorView y) {
  for_dtype(x.dtype(), [&](auto t) {
    using T = decltype(t);
    const Lines lines(shape);
    const std::int64_t group_size = shape.rows * shape.channels, width = lines.width;
    Scratch scratch(ctx);
    const T* from = x.data<T>();
    const T* m = along_lines<T>(scratch, shape, lines, mean.mean);
    const T* r = along_lines<T>(scratch, shape, lines, mean.rest);
    const T* a = along_lines<T>(scratch, shape, lines, scale);
    const T* b = along_lines<T>(scratch, shape, lines, shift);
    map_lines<T>(
        shape, lines,
        [=](std::int64_t g) {
          return [in = from + g * group_size, mg = m + g * width, rg = r + g * width,
                  ag = a + g * width, bg = b + g * width](std::int64_t i, std::int64_t j) {
            return ((in[i] - mg[j]) - rg[j]) * ag[j] + bg[j];
          };
        },
        y.data<T>());
  });
}

void gradient_sums(Context& ctx, const NormShape& shape, ConstTensorView x, Mean mean,
                   ConstTensorView dy, TensorView sum_dy, TensorView sum_dy_centered) {
  for_dtype(x.dtype(), [&](auto t) {
    using T = decltype(t);
    const Lines lines(shape);
    const std::int64_t group_size = shape.rows * shape.channels, width = lines.width;
    Scratch scratch(ctx);
    const T* from = x.data<T>();
    const T* grad = dy.data<T>();
    const T* m = along_lines<T>(scratch, shape, lines, mean.mean);
    const T* r = along_lines<T>(scratch, shape, lines, mean.rest);
    group_sums<T>(
        ctx, shape, lines,
        [=](std::int64_t g) {
          return [in = from + g * group_size, dg = grad + g * group_size, mg = m + g * width,
                  rg = r + g * width](std::int64_t i, std::int64_t j, T& du, T& dv) {
            du = dg[i];
            dv = dg[i] * ((in[i] - mg[j]) - rg[j]);
          };
        },
        sum_dy.data<double>(), sum_dy_centered.data<double>());
  });
}

void normalize_backward(Context& ctx, const NormShape& shape, ConstTensorView x, Mean mean,
                        ConstTensorView dy, ConstTensorView a, ConstTensorView b, ConstTensorView c,
                        TensorView dx) {
  for_dtype(x.dtype(), [&](auto t) {
    using T = decltype(t);
    const Lines lines(shape);
    const std::int64_t group_size = shape.rows * shape.channels, width = lines.width;
    Scratch scratch(ctx);
    const T* from = x.data<T>();
    const T* grad = dy.data<T>();
    const T* m = along_lines<T>(scratch, shape, lines, mean.mean);
    const T* r = along_lines<T>(scratch, shape, lines, mean.rest);
    const T* ka = along_lines<T>(scratch, shape, lines, a);
    const T* kb = along_lines<T>(scratch, shape, lines, b);
    const T* kc = along_lines<T>(scratch, shape, lines, c);
    map_lines<T>(
        shape, lines,
        [=](std::int64_t g) {
          return [in = from + g * group_size, dg = grad + g * group_size, mg = m + g * width,
                  rg = r + g * width, ag = ka + g * width, bg = kb + g * width,
                  cg = kc + g * width](std::int64_t i, std::int64_t j) {
            return ag[j] * dg[i] + bg[j] * ((in[i] - mg[j]) - rg[j]) + cg[j];
          };
        },
        dx.data<T>());
  });
}

}  // namespace dkfac::nn::cpu
