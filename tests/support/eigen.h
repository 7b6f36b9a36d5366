#pragma once

#include <Eigen/Dense>
#include <cmath>
#include <cstdint>
#include <span>

#include "dkfac/core/random.h"

/// Eigen as an independent oracle for dense algebra. Tests with it are not built where it is
/// missing.
namespace dkfac::testing {

using RowMajor = ::Eigen::Matrix<double, ::Eigen::Dynamic, ::Eigen::Dynamic, ::Eigen::RowMajor>;

/// Row-major memory, as Eigen sees it.
inline ::Eigen::Map<const RowMajor> as_eigen(std::span<const double> x, std::int64_t rows,
                                             std::int64_t cols) {
  return {x.data(), rows, cols};
}

inline RowMajor random_eigen(std::int64_t rows, std::int64_t cols, Random& random) {
  return RowMajor::NullaryExpr(rows, cols, [&] { return random.normal(); });
}

/// Q diag(values) Q' for a random Q: a symmetric matrix of known eigenvalues.
inline RowMajor with_eigenvalues(const ::Eigen::VectorXd& values, Random& random) {
  const auto n = values.size();
  const RowMajor q = random_eigen(n, n, random).householderQr().householderQ();
  const RowMajor a = q * values.asDiagonal() * q.transpose();
  return (a + a.transpose()) / 2;
}

/// 1, ..., 1/condition, equally far from each other in their logarithms.
inline ::Eigen::VectorXd falling_values(std::int64_t n, double condition) {
  return ::Eigen::VectorXd::NullaryExpr(n, [&](::Eigen::Index i) {
    return n == 1 ? 1 : std::pow(condition, -static_cast<double>(i) / static_cast<double>(n - 1));
  });
}

/// max |a - b|
template <class A, class B>
double distance(const A& a, const B& b) {
  return a.size() == 0 ? 0 : (a - b).cwiseAbs().maxCoeff();
}

}  // namespace dkfac::testing
