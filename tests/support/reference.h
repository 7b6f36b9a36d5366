#pragma once

#include <cassert>
#include <cmath>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "dkfac/core/ops.h"
#include "dkfac/core/random.h"

#include "support/add_multiple.h"

/// Straightforward reference algorithms in double precision, for comparison with fast ones.
namespace dkfac::testing {

/// Row-major matrix of doubles.
struct Dense {
  std::int64_t rows = 0, cols = 0;
  std::vector<double> data;

  Dense() = default;
  Dense(std::int64_t r, std::int64_t c)
      : rows(r), cols(c), data(static_cast<std::size_t>(r * c), 0.0) {}
  double& operator()(std::int64_t i, std::int64_t j) {
    return data[static_cast<std::size_t>(i * cols + j)];
  }
  double operator()(std::int64_t i, std::int64_t j) const {
    return data[static_cast<std::size_t>(i * cols + j)];
  }
  double* row(std::int64_t i) { return data.data() + i * cols; }
  [[nodiscard]] const double* row(std::int64_t i) const { return data.data() + i * cols; }
};

/// f(i, j) everywhere.
template <class F>
Dense make_dense(std::int64_t rows, std::int64_t cols, F&& f) {
  Dense out(rows, cols);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < cols; ++j) out(i, j) = f(i, j);
  }
  return out;
}

inline Dense identity(std::int64_t n) {
  return make_dense(n, n, [](std::int64_t i, std::int64_t j) { return i == j ? 1.0 : 0.0; });
}

/// Uniform in [lo, hi).
inline Dense random_dense(std::int64_t rows, std::int64_t cols, Random& random, double lo = -1,
                          double hi = 1) {
  return make_dense(rows, cols, [&](auto, auto) { return lo + (hi - lo) * random.uniform(); });
}

/// Integers in [-3, 3]: sums of their products are exact in any floating dtype that holds them, so
/// that results can be compared bit by bit.
inline Dense random_integers(std::int64_t rows, std::int64_t cols, Random& random) {
  return make_dense(rows, cols,
                    [&](auto, auto) { return static_cast<double>(random.below(7)) - 3; });
}

inline Dense transpose(const Dense& a) {
  return make_dense(a.cols, a.rows, [&](std::int64_t i, std::int64_t j) { return a(j, i); });
}

/// The lower triangle with zeros above.
inline Dense lower(const Dense& a) {
  return make_dense(a.rows, a.cols,
                    [&](std::int64_t i, std::int64_t j) { return j <= i ? a(i, j) : 0.0; });
}

/// alpha*a*b + beta*c; c may be empty where beta = 0.
inline Dense naive_gemm(double alpha, const Dense& a, const Dense& b, double beta = 0,
                        const Dense& c = {}) {
  assert(a.cols == b.rows);
  Dense out(a.rows, b.cols);
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t p = 0; p < a.cols; ++p)
      add_multiple(static_cast<std::size_t>(b.cols), a(i, p), b.row(p), out.row(i));
    for (std::int64_t j = 0; j < b.cols; ++j) {
      out(i, j) = alpha * out(i, j) + (beta == 0 ? 0 : beta * c(i, j));
    }
  }
  return out;
}

inline Dense multiply(const Dense& a, const Dense& b) { return naive_gemm(1, a, b); }

/// a (x) b: block (i, j) is a(i, j) * b.
inline Dense kronecker(const Dense& a, const Dense& b) {
  return make_dense(a.rows * b.rows, a.cols * b.cols, [&](std::int64_t i, std::int64_t j) {
    return a(i / b.rows, j / b.cols) * b(i % b.rows, j % b.cols);
  });
}

/// x with a*x = b, by Gaussian elimination with partial pivoting.
inline Dense solve(Dense a, Dense b) {
  assert(a.rows == a.cols && a.rows == b.rows);
  const std::int64_t n = a.rows;
  for (std::int64_t k = 0; k < n; ++k) {
    std::int64_t pivot = k;
    for (std::int64_t i = k + 1; i < n; ++i) {
      if (std::abs(a(i, k)) > std::abs(a(pivot, k))) pivot = i;
    }
    if (a(pivot, k) == 0) throw std::runtime_error("[solve] the matrix is singular");
    for (std::int64_t j = 0; j < n; ++j) std::swap(a(k, j), a(pivot, j));
    for (std::int64_t j = 0; j < b.cols; ++j) std::swap(b(k, j), b(pivot, j));
    for (std::int64_t i = 0; i < n; ++i) {
      if (i == k) continue;
      const double factor = a(i, k) / a(k, k);
      add_multiple(static_cast<std::size_t>(n - k), -factor, a.row(k) + k, a.row(i) + k);
      add_multiple(static_cast<std::size_t>(b.cols), -factor, b.row(k), b.row(i));
    }
  }
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < b.cols; ++j) b(i, j) /= a(i, i);
  }
  return b;
}

inline Dense inverse(const Dense& a) { return solve(a, identity(a.rows)); }

/// Patches [rows, width] by the definition: the element of sample n, output position (oh, ow),
/// kernel position (kh, kw) and channel c is x at (oh*stride_h - pad_h + kh*dilation_h, ...), or 0
/// outside.
inline Dense naive_im2col(const ops::PatchSpec& s, std::span<const double> x) {
  Dense out(s.rows(), s.width());
  const bool nhwc = s.layout == ops::Layout::nhwc;
  std::int64_t row = 0;
  for (std::int64_t n = 0; n < s.n; ++n) {
    for (std::int64_t oh = 0; oh < s.out_h(); ++oh) {
      for (std::int64_t ow = 0; ow < s.out_w(); ++ow, ++row) {
        for (std::int64_t kh = 0; kh < s.window.kernel_h; ++kh) {
          for (std::int64_t kw = 0; kw < s.window.kernel_w; ++kw) {
            for (std::int64_t c = 0; c < s.c; ++c) {
              const std::int64_t h =
                  oh * s.window.stride_h - s.window.pad_h + kh * s.window.dilation_h;
              const std::int64_t w =
                  ow * s.window.stride_w - s.window.pad_w + kw * s.window.dilation_w;
              if (h < 0 || h >= s.h || w < 0 || w >= s.w) continue;
              const std::int64_t column =
                  nhwc ? (kh * s.window.kernel_w + kw) * s.c + c
                       : (c * s.window.kernel_h + kh) * s.window.kernel_w + kw;
              const std::int64_t from =
                  nhwc ? ((n * s.h + h) * s.w + w) * s.c + c : ((n * s.c + c) * s.h + h) * s.w + w;
              out(row, column) = x[static_cast<std::size_t>(from)];
            }
          }
        }
      }
    }
  }
  return out;
}

/// [x 1]: a column of ones at the end.
inline Dense with_ones(const Dense& x) {
  return make_dense(x.rows, x.cols + 1,
                    [&](std::int64_t i, std::int64_t j) { return j < x.cols ? x(i, j) : 1.0; });
}

}  // namespace dkfac::testing
