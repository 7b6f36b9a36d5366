#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>

#include "dkfac/core/context.h"

#include "nn/backends/cpu/parallel.h"
#include "nn/backends/cpu/storage.h"
#include "nn/backends/norm_shape.h"
#include "vectorized.h"

/// Traversal of x[groups,rows,c] in the loops of batch normalisation.
namespace dkfac::nn::cpu {

/// Elements of a row that are summed side by side, in registers.
inline constexpr std::int64_t kStrip = 64;
/// Rows that are summed in the type of the data before the sum goes to f64.
inline constexpr std::int64_t kShortRun = 64;
inline constexpr std::int64_t kChunkElements = 16384;

/// Traversal of one group. Few channels would leave vectors empty, so several rows are taken as one
/// line of `width` elements; the remainder at the end of the group is the tail.
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

/// Repeats channel values along a line: [groups,c] -> [groups,width].
template <class T>
inline const T* along_lines(Scratch& scratch, const NormShape& s, const Lines& lines,
                            ConstTensorView x) {
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

/// Two sums per element of a line, over `count` lines, of which `length` elements from `first` on
/// are read. term(i, j, u, v) gives the terms of element i of the data, j of the line.
template <class T, class Term>
inline void strip_sums(std::int64_t width, std::int64_t first, std::int64_t length,
                       std::int64_t count, const Term& term, double* sum_u, double* sum_v) {
  for (std::int64_t from = 0; from < count; from += kShortRun) {
    const std::int64_t to = from + kShortRun < count ? from + kShortRun : count;
    std::array<T, kStrip> u{}, v{};
    for (std::int64_t line = from; line < to; ++line) {
      const std::int64_t start = line * width + first;
      if (length == kStrip) {
#pragma GCC ivdep
        for (std::int64_t j = 0; j < kStrip; ++j) {
          const auto k = static_cast<std::size_t>(j);
          T du, dv;
          term(start + j, first + j, du, dv);
          u[k] += du;
          v[k] += dv;
        }
      } else {
#pragma GCC ivdep
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

/// Sums one chunk of lines, and the tail behind the last one, into u and v [width].
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

/// Sums two terms over the rows of each group; results are f64 [groups,c]. make_term(group) returns
/// the term for data that starts with that group.
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

/// y = f(i, j) for every element i of every group, with j its position within a line.
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
          for (std::int64_t j = 0; j < length; ++j) {
            out[start + j] = store<T>(map(start + j, j));
          }
        }
      });
    }
  });
}

}  // namespace dkfac::nn::cpu
