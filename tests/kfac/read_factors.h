#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include <gtest/gtest.h>

#include "dkfac/kfac/preconditioner.h"

#include "support/fisher.h"
#include "support/natural_gradient.h"
#include "support/near.h"

/// Compares read_factors() with sums computed by definition.
namespace dkfac::testing::factors {

using namespace fisher;
using kfac::CurvatureOptions;

inline CurvatureOptions factor_options() {
  CurvatureOptions options = natural_gradient();
  options.damping = 1e-2;
  options.statistics.new_weight = 1;
  options.dtype = DType::f64;
  return options;
}

inline Matrix matrix_of(const Tensor& x) {
  EXPECT_EQ(x.shape().ndim(), 2);
  Matrix out(x.shape()[0], x.shape()[1]);
  std::copy_n(x.data<double>(), x.numel(), out.v.begin());
  return out;
}
/// inverse * (average + damping I) - I, largest element.
inline double residual(const Matrix& inverse, const Matrix& average, double damping) {
  const Matrix product = multiply(inverse, plus_diagonal(average, damping));
  double most = 0;
  for (std::int64_t r = 0; r < product.rows; ++r)
    for (std::int64_t c = 0; c < product.cols; ++c)
      most = std::max(most, std::abs(product(r, c) - (r == c ? 1 : 0)));
  return most;
}

/// A linear layer with a bias and several positions per sample, and one without.
inline constexpr std::int64_t kSamples = 6, kPositions = 4;
inline const LayerSpec kFirst = LinearSpec{.in = 3, .out = 5};
inline const LayerSpec kSecond = LinearSpec{.in = 5, .out = 2, .bias = false};

struct Batch {
  Matrix x, dy;  ///< Rows are positions of samples.
};
inline Batch random_batch(const LayerSpec& spec, std::int64_t positions, std::uint64_t seed) {
  const auto& linear = std::get<LinearSpec>(spec);
  Random random(seed);
  return {random_matrix(kSamples * positions, linear.in, random),
          random_matrix(kSamples * positions, linear.out, random)};
}

/// A and G by their definition, of a loss that is a mean over samples: a sample's own gradient is
/// `samples` times the recorded one.
inline std::pair<Matrix, Matrix> naive(const LayerSpec& spec, const Batch& batch,
                                       std::int64_t positions) {
  const bool bias = dkfac::bias_numel(spec) > 0;
  const auto n = static_cast<double>(batch.x.rows) / static_cast<double>(positions);
  const Matrix a =
      bias ? join_bias(batch.x, Vector(static_cast<std::size_t>(batch.x.rows), 1.0)) : batch.x;
  Matrix g = batch.dy;
  for (double& x : g.v) x *= n;
  return {second_moment(a, n * static_cast<double>(positions)), second_moment(g, n)};
}

/// Sums of up to 24 terms of size up to 100, merged; 64 n eps.
inline constexpr double kSum = 64 * 24 * eps<double>;
/// Condition at most 1e4 beside a damping of 1e-2 or more: times n eps.
inline constexpr double kInverse = 1e4 * 24 * eps<double>;

}  // namespace dkfac::testing::factors
