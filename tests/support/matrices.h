#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include "support/reference.h"

/// Symmetric matrices whose factors, inverses or eigenvalues are known in closed form.
namespace dkfac::testing {

/// A matrix with its Cholesky factor and inverse.
struct KnownSpd {
  Dense a, factor, inverse;
};

/// a(i,j) = min(i,j) + 1, the sum over m <= min(i,j) of 1*1, so L is the lower triangle of ones.
/// L^-1 takes differences of neighbours, hence the inverse is the second difference matrix with a 1
/// in its last corner. Condition about 4 n^2 / pi^2 * 4.
inline KnownSpd min_matrix(std::int64_t n) {
  return {make_dense(n, n, [](auto i, auto j) { return static_cast<double>(std::min(i, j) + 1); }),
          make_dense(n, n, [](auto i, auto j) { return j <= i ? 1.0 : 0.0; }),
          make_dense(n, n, [n](auto i, auto j) {
            if (i == j) return i == n - 1 ? 1.0 : 2.0;
            return std::abs(i - j) == 1 ? -1.0 : 0.0;
          })};
}

/// a(i,j) = r^|i-j|, the covariance of x_0 = e_0, x_i = r x_{i-1} + sqrt(1-r^2) e_i with unit e:
/// expanding x_i in e gives L. The inverse collects (x_i - r x_{i-1})^2 / (1 - r^2).
inline KnownSpd decaying_matrix(std::int64_t n, double r) {
  const double rest = 1 - r * r;
  return {make_dense(n, n, [r](auto i, auto j) { return std::pow(r, std::abs(i - j)); }),
          make_dense(n, n,
                     [&](auto i, auto j) {
                       if (j > i) return 0.0;
                       return std::pow(r, i - j) * (j == 0 ? 1.0 : std::sqrt(rest));
                     }),
          make_dense(n, n, [&](auto i, auto j) {
            if (n == 1) return 1.0;
            if (i == j) return (i == 0 || i == n - 1 ? 1 : 1 + r * r) / rest;
            return std::abs(i - j) == 1 ? -r / rest : 0.0;
          })};
}

/// delta*1 + u u' and its inverse (1 - u u' / (delta + u'u)) / delta (Sherman and Morrison). The
/// eigenvalues are delta, n - 1 times, and delta + u'u.
struct RankOneUpdate {
  Dense a, inverse;
  std::vector<double> eigenvalues;  ///< Ascending.
};
inline RankOneUpdate rank_one_update(std::int64_t n, double delta, Random& random) {
  const Dense u = random_dense(n, 1, random);
  double square = 0;
  for (const double x : u.data) square += x * x;
  RankOneUpdate out;
  out.a = make_dense(n, n, [&](auto i, auto j) { return (i == j) * delta + u(i, 0) * u(j, 0); });
  out.inverse = make_dense(n, n, [&](auto i, auto j) {
    return ((i == j) - u(i, 0) * u(j, 0) / (delta + square)) / delta;
  });
  out.eigenvalues.assign(static_cast<std::size_t>(n), delta);
  if (n > 0) out.eigenvalues.back() += square;
  return out;
}

/// L D L' with L of ones and D of ones but for d_{order-1} = `pivot`: the leading minors are
/// products of D, so with pivot <= 0 the first that is not positive has the given order (from 1).
inline Dense bad_minor_matrix(std::int64_t n, std::int64_t order, double pivot) {
  return make_dense(n, n, [&](auto i, auto j) {
    const auto least = std::min(i, j);
    return static_cast<double>(least + 1) + (least >= order - 1 ? pivot - 1 : 0.0);
  });
}

/// a(i,j) = 1/(i+j+1): condition about e^(3.5 n).
inline Dense hilbert_matrix(std::int64_t n) {
  return make_dense(n, n, [](auto i, auto j) { return 1.0 / static_cast<double>(i + j + 1); });
}

/// tridiag(-1, 2, -1). sin(pi k (i+1)/(n+1)) is an eigenvector for 2 - 2 cos(pi k/(n+1)).
struct KnownSpectrum {
  Dense a;
  std::vector<double> eigenvalues;  ///< Ascending.
};
inline KnownSpectrum second_difference(std::int64_t n) {
  KnownSpectrum out;
  out.a = make_dense(n, n, [](auto i, auto j) {
    if (i == j) return 2.0;
    return std::abs(i - j) == 1 ? -1.0 : 0.0;
  });
  for (std::int64_t k = 1; k <= n; ++k) {
    const double angle = std::numbers::pi * static_cast<double>(k) / static_cast<double>(n + 1);
    out.eigenvalues.push_back(2 - 2 * std::cos(angle));
  }
  return out;
}

/// x'x for a random x[2n, n]: well conditioned, no structure.
inline Dense random_spd(std::int64_t n, Random& random) {
  const Dense x = random_dense(2 * n, n, random);
  return naive_gemm(1, transpose(x), x);
}

}  // namespace dkfac::testing
