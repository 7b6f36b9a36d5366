#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

/// Conjugate gradients on a quadratic loss, in plain loops.
namespace dkfac::testing {

using Point = std::vector<double>;
using Hessian = std::vector<Point>;

inline double dot_of(const Point& x, const Point& y) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

inline Point hessian_times(const Hessian& a, const Point& x) {
  Point y;
  for (const Point& row : a) y.push_back(dot_of(row, x));
  return y;
}

/// y + factor x
inline Point moved_by(const Point& y, double factor, const Point& x) {
  Point sum = y;
  for (std::size_t i = 0; i < x.size(); ++i) sum[i] += factor * x[i];
  return sum;
}

/// B B' + I of a fixed B: positive definite.
inline Hessian positive_hessian(std::size_t n, double seed) {
  Hessian a(n, Point(n));
  const auto b = [&](std::size_t i, std::size_t j) {
    return std::sin(seed * static_cast<double>(3 * i * i + 7 * j + i * j + 1));
  };
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j) {
      a[i][j] = i == j ? 1 : 0;
      for (std::size_t k = 0; k < n; ++k) a[i][j] += b(i, k) * b(j, k);
    }
  return a;
}

/// Preconditioned conjugate gradients as in Nocedal and Wright 2006, algorithm 5.3.
inline std::vector<Point> conjugate_gradients(const Hessian& a, const Hessian& p, const Point& c,
                                              int steps) {
  std::vector<Point> out{Point(c.size())};
  Point r = moved_by(Point(c.size()), -1, c), y = hessian_times(p, r),
        d = moved_by(Point(c.size()), -1, y);
  for (int k = 0; k < steps; ++k) {
    const Point ad = hessian_times(a, d);
    const double ry = dot_of(r, y), alpha = ry / dot_of(d, ad);
    out.push_back(moved_by(out.back(), alpha, d));
    r = moved_by(r, alpha, ad);
    y = hessian_times(p, r);
    d = moved_by(moved_by(Point(c.size()), -1, y), dot_of(r, y) / ry, d);
  }
  return out;
}

inline double course_error(const std::vector<Point>& x, const std::vector<Point>& y) {
  double largest = 0;
  for (std::size_t k = 0; k < x.size(); ++k) {
    const Point difference = moved_by(x[k], -1, y[k]);
    largest =
        std::max(largest, std::sqrt(dot_of(difference, difference) / dot_of(y.back(), y.back())));
  }
  return largest;
}

}  // namespace dkfac::testing
