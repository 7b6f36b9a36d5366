#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "dkfac/core/ops.h"
#include "dkfac/core/random.h"
#include "dkfac/core/tensor.h"

#include "support/add_multiple.h"
#include "support/near.h"

/// Curvature by its definition: dense matrices and plain loops, independent of the library. The
/// gradient of a layer is [dW | db] with rows of outputs, flattened row by row, so that
/// vec(g a') = g (x) a and a Fisher block is G (x) A.
namespace dkfac::testing::fisher {

using Vector = std::vector<double>;

/// Row-major dense matrix.
struct Matrix {
  std::int64_t rows = 0, cols = 0;
  Vector v;

  Matrix() = default;
  Matrix(std::int64_t r, std::int64_t c) : rows(r), cols(c), v(static_cast<std::size_t>(r * c)) {}
  double& operator()(std::int64_t r, std::int64_t c) {
    return v[static_cast<std::size_t>(r * cols + c)];
  }
  double operator()(std::int64_t r, std::int64_t c) const {
    return v[static_cast<std::size_t>(r * cols + c)];
  }
  [[nodiscard]] Vector row(std::int64_t r) const {
    return {v.begin() + r * cols, v.begin() + (r + 1) * cols};
  }
  [[nodiscard]] TensorView view() { return view_of(v.data(), {rows, cols}); }
  [[nodiscard]] ConstTensorView view() const { return view_of(v.data(), {rows, cols}); }
};

inline Vector random_vector(std::int64_t n, Random& random, double scale = 1) {
  Vector x(static_cast<std::size_t>(n));
  for (double& e : x) e = scale * random.normal();
  return x;
}

inline Matrix random_matrix(std::int64_t rows, std::int64_t cols, Random& random,
                            double scale = 1) {
  Matrix m(rows, cols);
  m.v = random_vector(rows * cols, random, scale);
  return m;
}

inline Matrix identity(std::int64_t n, double value = 1) {
  Matrix m(n, n);
  for (std::int64_t i = 0; i < n; ++i) m(i, i) = value;
  return m;
}

inline Matrix multiply(const Matrix& a, const Matrix& b) {
  Matrix c(a.rows, b.cols);
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t k = 0; k < a.cols; ++k)
      add_multiple(static_cast<std::size_t>(b.cols), a(i, k), b.v.data() + k * b.cols,
                   c.v.data() + i * c.cols);
  }
  return c;
}

inline Matrix transpose(const Matrix& a) {
  Matrix t(a.cols, a.rows);
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t j = 0; j < a.cols; ++j) t(j, i) = a(i, j);
  }
  return t;
}

inline Matrix plus_diagonal(Matrix a, double value) {
  for (std::int64_t i = 0; i < a.rows; ++i) a(i, i) += value;
  return a;
}

inline double trace(const Matrix& a) {
  double sum = 0;
  for (std::int64_t i = 0; i < a.rows; ++i) sum += a(i, i);
  return sum;
}

/// (G (x) A)[(o,i),(o',i')] = G[o,o'] A[i,i'].
inline Matrix kronecker(const Matrix& g, const Matrix& a) {
  Matrix k(g.rows * a.rows, g.cols * a.cols);
  for (std::int64_t r = 0; r < k.rows; ++r) {
    for (std::int64_t c = 0; c < k.cols; ++c) {
      k(r, c) = g(r / a.rows, c / a.cols) * a(r % a.rows, c % a.cols);
    }
  }
  return k;
}

/// m += weight * x x'.
inline void add_outer(Matrix& m, const Vector& x, double weight) {
  for (std::int64_t r = 0; r < m.rows; ++r)
    add_multiple(static_cast<std::size_t>(m.cols), weight * x[static_cast<std::size_t>(r)],
                 x.data(), m.v.data() + r * m.cols);
}

/// g (x) a: the gradient of one sample, flattened.
inline Vector outer(const Vector& g, const Vector& a) {
  Vector out;
  out.reserve(g.size() * a.size());
  for (const double gi : g) {
    for (const double aj : a) out.push_back(gi * aj);
  }
  return out;
}

/// rows' rows / divisor.
inline Matrix second_moment(const Matrix& rows, double divisor) {
  Matrix m(rows.cols, rows.cols);
  for (std::int64_t r = 0; r < rows.rows; ++r) add_outer(m, rows.row(r), 1 / divisor);
  return m;
}

/// A symmetric positive definite matrix with eigenvalues of at least `least`.
inline Matrix random_spd(std::int64_t n, Random& random, double least = 0.1) {
  const Matrix rows = random_matrix(2 * n, n, random);
  return plus_diagonal(second_moment(rows, static_cast<double>(2 * n)), least);
}

/// m^-1 b by elimination with pivots, in extended precision; columns of b are solved for together.
inline Matrix solve_columns(const Matrix& m, const Matrix& b) {
  const auto n = static_cast<std::size_t>(m.rows), columns = static_cast<std::size_t>(b.cols);
  std::vector<long double> a(m.v.begin(), m.v.end()), x(b.v.begin(), b.v.end());
  const auto subtract = [&](std::size_t from, std::size_t to, long double factor) {
    add_multiple(columns, -factor, x.data() + from * columns, x.data() + to * columns);
  };
  for (std::size_t k = 0; k < n; ++k) {
    std::size_t pivot = k;
    for (std::size_t r = k + 1; r < n; ++r) {
      if (std::abs(a[r * n + k]) > std::abs(a[pivot * n + k])) pivot = r;
    }
    for (std::size_t c = 0; c < n; ++c) std::swap(a[k * n + c], a[pivot * n + c]);
    for (std::size_t c = 0; c < columns; ++c) std::swap(x[k * columns + c], x[pivot * columns + c]);
    for (std::size_t r = k + 1; r < n; ++r) {
      const long double factor = a[r * n + k] / a[k * n + k];
      add_multiple(n - k, -factor, a.data() + k * n + k, a.data() + r * n + k);
      subtract(k, r, factor);
    }
  }
  for (std::size_t k = n; k-- > 0;) {
    for (std::size_t c = k + 1; c < n; ++c) subtract(c, k, a[k * n + c]);
    for (std::size_t c = 0; c < columns; ++c) x[k * columns + c] /= a[k * n + k];
  }
  Matrix out(m.rows, b.cols);
  std::transform(x.begin(), x.end(), out.v.begin(),
                 [](long double e) { return static_cast<double>(e); });
  return out;
}

inline Vector solve(const Matrix& m, const Vector& b) {
  Matrix column(m.rows, 1);
  column.v = b;
  return solve_columns(m, column).v;
}

inline Matrix inverse(const Matrix& m) { return solve_columns(m, identity(m.rows)); }

/// |a - b| / |b| in the Frobenius norm; infinity for other sizes, and NaN, which no bar admits,
/// when b is zero.
inline double relative_norm(const Vector& a, const Vector& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

inline double cosine(const Vector& a, const Vector& b) {
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ab += a[i] * b[i];
    aa += a[i] * a[i];
    bb += b[i] * b[i];
  }
  return ab / std::sqrt(aa * bb);
}

/// Columns 0 to cols-2 and the last one: the two parts of a gradient [dW | db].
inline std::pair<Matrix, Vector> split_bias(const Matrix& m) {
  std::pair<Matrix, Vector> parts{Matrix(m.rows, m.cols - 1), Vector()};
  for (std::int64_t r = 0; r < m.rows; ++r) {
    for (std::int64_t c = 0; c + 1 < m.cols; ++c) parts.first(r, c) = m(r, c);
    parts.second.push_back(m(r, m.cols - 1));
  }
  return parts;
}

inline Matrix join_bias(const Matrix& weight, const Vector& bias) {
  Matrix m(weight.rows, weight.cols + 1);
  for (std::int64_t r = 0; r < m.rows; ++r) {
    for (std::int64_t c = 0; c < weight.cols; ++c) m(r, c) = weight(r, c);
    m(r, weight.cols) = bias[static_cast<std::size_t>(r)];
  }
  return m;
}

/// A view's lower triangle as a full symmetric matrix.
inline Matrix symmetric(Context& ctx, ConstTensorView lower) {
  Matrix m(lower.dim(0), lower.dim(0));
  m.v = values(ctx, lower);
  for (std::int64_t r = 0; r < m.rows; ++r) {
    for (std::int64_t c = 0; c < r; ++c) m(c, r) = m(r, c);
  }
  return m;
}

/// Row-major lower triangle.
inline Vector packed(const Matrix& m) {
  Vector out;
  for (std::int64_t r = 0; r < m.rows; ++r) {
    for (std::int64_t c = 0; c <= r; ++c) out.push_back(m(r, c));
  }
  return out;
}

/// `x` as a tensor of `dtype`.
inline Tensor tensor(Context& ctx, const Vector& x, Shape shape, DType dtype = DType::f64) {
  Tensor t = Tensor::empty(ctx, shape, dtype);
  ops::cast(ctx, view_of(x.data(), shape), t);
  return t;
}

}  // namespace dkfac::testing::fisher
