#include "optim/quadratic_model.h"

#include <algorithm>
#include <cmath>

#include "core/shared/index.h"

namespace dkfac::optim {
namespace {

struct Eigenpairs {
  Vector3 values{};
  Matrix3 vectors{};  ///< In columns.
};

/// Zeroes a[p][q] by a rotation of the rows and columns p and q.
void rotate(Matrix3& a, Matrix3& vectors, std::size_t n, std::size_t p, std::size_t q) {
  if (a[p][q] == 0) return;
  const double half = (a[q][q] - a[p][p]) / (2 * a[p][q]);
  const double t = (half >= 0 ? 1 : -1) / (std::abs(half) + std::hypot(1, half));
  const double c = 1 / std::hypot(1, t), s = t * c;
  const auto mix = [&](double& x, double& y) {
    const double old = x;
    x = c * old - s * y;
    y = s * old + c * y;
  };
  for (std::size_t k = 0; k < n; ++k) mix(a[k][p], a[k][q]);
  for (std::size_t k = 0; k < n; ++k) mix(a[p][k], a[q][k]);
  for (std::size_t k = 0; k < n; ++k) mix(vectors[k][p], vectors[k][q]);
}

/// Jacobi's method on the leading n rows and columns; it converges quadratically.
Eigenpairs eigenpairs(Matrix3 a, std::size_t n) {
  constexpr int kSweeps = 12;
  Eigenpairs out;
  for (std::size_t i = 0; i < n; ++i) out.vectors[i][i] = 1;
  for (int sweep = 0; sweep < kSweeps; ++sweep)
    for (std::size_t p = 0; p < n; ++p)
      for (std::size_t q = p + 1; q < n; ++q) rotate(a, out.vectors, n, p, q);
  for (std::size_t i = 0; i < n; ++i) out.values[i] = a[i][i];
  return out;
}

/// Q with a diagonal of 1; false where that is impossible.
bool scale_to_ones(const Matrix3& q, std::size_t n, Matrix3& scaled, Vector3& roots) {
  bool possible = true;
  for (std::size_t i = 0; i < n; ++i) {
    possible = possible && q[i][i] > 0;
    roots[i] = std::sqrt(q[i][i]);
  }
  for (std::size_t i = 0; possible && i < n; ++i)
    for (std::size_t j = 0; j < n; ++j) {
      scaled[i][j] = q[i][j] / roots[i] / roots[j];
      possible = possible && std::isfinite(scaled[i][j]);
    }
  return possible;
}

double smallest_of(const Eigenpairs& pairs, std::size_t n) {
  return *std::min_element(pairs.values.begin(),
                           pairs.values.begin() + static_cast<std::ptrdiff_t>(n));
}

/// -Q^-1 b of the leading n directions; zeros where Q is singular.
Vector3 minimum(const Matrix3& q, const Vector3& b, std::size_t n) {
  Matrix3 scaled{};
  Vector3 roots{}, x{};
  if (!scale_to_ones(q, n, scaled, roots)) return x;
  const Eigenpairs pairs = eigenpairs(scaled, n);
  if (!(smallest_of(pairs, n) > kIndependent)) return x;
  for (std::size_t k = 0; k < n; ++k) {
    double along = 0;
    for (std::size_t i = 0; i < n; ++i) along += pairs.vectors[i][k] * b[i] / roots[i];
    for (std::size_t i = 0; i < n; ++i)
      x[i] -= pairs.vectors[i][k] * along / pairs.values[k] / roots[i];
  }
  return x;
}

}  // namespace

ModelStep solve(const DirectionProducts& products, double damping) {
  Matrix3 q{};
  for (std::size_t i = 0; i < q.size(); ++i)
    for (std::size_t j = 0; j < q.size(); ++j)
      q[i][j] = products.curvature[i][j] + products.decay[i][j] + damping * products.inner[i][j];
  for (int used = products.count; used > 0; --used) {
    const auto n = index_of(used);
    const Vector3 x = minimum(q, products.slope, n);
    double change = 0;
    for (std::size_t i = 0; i < n; ++i) change += products.slope[i] * x[i] / 2;
    if (x[0] > 0 && std::isfinite(change)) return {x, used, change};
  }
  return {};
}

}  // namespace dkfac::optim
