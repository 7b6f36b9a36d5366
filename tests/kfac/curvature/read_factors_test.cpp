#include "kfac/read_factors.h"

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/kfac/inverse.h"

namespace dkfac::testing {
namespace {

using namespace factors;
using kfac::LayerFactors;

Matrix mix(const Matrix& a, const Matrix& b, double weight_of_b) {
  Matrix out = a;
  for (std::size_t i = 0; i < out.v.size(); ++i)
    out.v[i] = (1 - weight_of_b) * a.v[i] + weight_of_b * b.v[i];
  return out;
}

class TwoLayers {
 public:
  explicit TwoLayers(const CurvatureOptions& options,
                     std::shared_ptr<comm::Communicator> comm = comm::make_self())
      : comm_(comm), preconditioner_(std::move(comm), options) {
    first_ = preconditioner_.add_layer("first", kFirst);
    second_ = preconditioner_.add_layer("second", kSecond);
  }

  /// Records this rank's samples of the batches and steps.
  void step(const Batch& first, const Batch& second) {
    const std::int64_t n = kSamples / comm_->size(), from = comm_->rank() * n;
    const auto rows = [&](const Matrix& m, std::int64_t positions, std::int64_t width) {
      const double* at = m.v.data() + from * positions * width;
      return positions == 1 ? view_of(at, {n, width}) : view_of(at, {n, positions, width});
    };
    const RecordScale scale{.loss_scale = 1, .global_batch = kSamples};
    preconditioner_.record_input(first_, rows(first.x, kPositions, 3), Stream::cpu(), scale);
    preconditioner_.record_input(second_, rows(second.x, 1, 5), Stream::cpu(), scale);
    preconditioner_.record_grad_output(second_, rows(second.dy, 1, 2), Stream::cpu(), scale);
    preconditioner_.record_grad_output(first_, rows(first.dy, kPositions, 5), Stream::cpu(), scale);
    direction_ = Matrix(2, 5);
    for (std::size_t i = 0; i < 10; ++i) direction_.v[i] = static_cast<double>(i) - 3;
    Vector w(15, 1.0), b(5, 1.0);
    const std::vector<kfac::LayerGrad> grads{
        {first_, view_of(w.data(), {5, 3}), view_of(b.data(), {5})},
        {second_, direction_.view(), {}}};
    EXPECT_TRUE(preconditioner_.step(grads).updated);
  }

  [[nodiscard]] LayerFactors first() { return preconditioner_.read_factors(first_); }
  [[nodiscard]] LayerFactors second() { return preconditioner_.read_factors(second_); }
  /// Of the second layer's gradient of (-3, -2, ..., 6).
  [[nodiscard]] const Matrix& direction() const { return direction_; }
  [[nodiscard]] kfac::Preconditioner& preconditioner() { return preconditioner_; }

 private:
  std::shared_ptr<comm::Communicator> comm_;
  kfac::Preconditioner preconditioner_;
  LayerId first_{}, second_{};
  Matrix direction_;
};

TEST(ReadFactors, AreTheAveragesOfTheStatisticsAndTheirDampedInverses) {
  const Batch first1 = random_batch(kFirst, kPositions, 1), second1 = random_batch(kSecond, 1, 2);
  const Batch first2 = random_batch(kFirst, kPositions, 3), second2 = random_batch(kSecond, 1, 4);
  // Refreshed in every step as Cholesky factors, rarely as inverses.
  for (const int interval : {1, 2}) {
    CurvatureOptions options = factor_options();
    options.statistics.new_weight = 0.3;
    options.loss_reduction = LossReduction::global_mean;
    options.refresh.inverse_interval = interval;
    TwoLayers layers(options);
    layers.step(first1, second1);
    layers.step(first2, second2);
    const double w = kfac::average_weight(0.3, 2);
    const auto [a1, g1] = naive(kFirst, first1, kPositions);
    const auto [a2, g2] = naive(kFirst, first2, kPositions);
    const auto [b1, h1] = naive(kSecond, second1, 1);
    const auto [b2, h2] = naive(kSecond, second2, 1);
    const auto check = [&](const LayerFactors& read, const std::array<Matrix, 2>& a,
                           const std::array<Matrix, 2>& g) {
      EXPECT_EQ(read.owner, 0);
      EXPECT_EQ(read.a.statistics, 2);
      EXPECT_EQ(read.g.statistics, 2);
      EXPECT_TRUE(near(matrix_of(read.a.average).v, mix(a[0], a[1], w).v, kSum));
      EXPECT_TRUE(near(matrix_of(read.g.average).v, mix(g[0], g[1], w).v, kSum));
      // Controls: the newest alone, and the other convention of 1/P.
      EXPECT_FALSE(near(matrix_of(read.a.average).v, a[1].v, 0.05));
      EXPECT_FALSE(near(matrix_of(read.g.average).v, g[1].v, 0.05));
      // The inverse is of the last refresh.
      const Matrix at = interval == 1 ? mix(a[0], a[1], w) : a[0];
      const Matrix gt = interval == 1 ? mix(g[0], g[1], w) : g[0];
      const auto split =
          kfac::split_damping(options.damping, trace(at), at.rows, trace(gt), gt.rows).value();
      ASSERT_EQ(read.a.damping.size(), 1U);
      EXPECT_NEAR(read.a.damping[0], split.a, 64 * eps<double> * split.a);
      EXPECT_NEAR(read.g.damping[0], split.g, 64 * eps<double> * split.g);
      EXPECT_LT(residual(matrix_of(read.a.inverse), at, split.a), kInverse);
      EXPECT_LT(residual(matrix_of(read.g.inverse), gt, split.g), kInverse);
      EXPECT_GT(residual(matrix_of(read.a.inverse), at, 2 * split.a), 1e-3);
      for (const Tensor* m : {&read.a.average, &read.g.average, &read.a.inverse, &read.g.inverse})
        EXPECT_EQ(matrix_of(*m).v, transpose(matrix_of(*m)).v) << "not symmetric to the bit";
    };
    check(layers.first(), {a1, a2}, {g1, g2});
    check(layers.second(), {b1, b2}, {h1, h2});
    // They are what the gradient was multiplied by.
    const LayerFactors second = layers.second();
    Matrix v(2, 5);
    for (std::size_t i = 0; i < 10; ++i) v.v[i] = static_cast<double>(i) - 3;
    const Matrix u =
        multiply(multiply(matrix_of(second.g.inverse), v), matrix_of(second.a.inverse));
    EXPECT_TRUE(near(layers.direction().v, u.v, kInverse));
  }
  // Control: A is a mean over positions, G a sum.
  const auto [a, g] = naive(kFirst, first1, kPositions);
  const auto [all_a, all_g] = naive(kFirst, first1, 1);
  EXPECT_TRUE(near(all_a.v, a.v, kSum));
  EXPECT_FALSE(near(all_g.v, g.v, 0.5));
}

TEST(ReadFactors, OfEigenvectorsRebuildTheAverage) {
  CurvatureOptions options = factor_options();
  options.inverse.method = kfac::InverseMethod::ekfac;
  options.refresh.inverse_interval = 5;
  TwoLayers layers(options);
  const Batch first = random_batch(kFirst, kPositions, 6), second = random_batch(kSecond, 1, 7);
  layers.step(first, second);
  EXPECT_FALSE(layers.second().scales.is_set());
  const LayerFactors before = layers.second();
  layers.step(first, second);
  const LayerFactors read = layers.second();
  EXPECT_FALSE(read.a.inverse.is_set());
  EXPECT_TRUE(read.a.damping.empty());
  const auto rebuilt = [](const kfac::FactorCopy& factor) {
    const Matrix q = matrix_of(factor.vectors);
    Matrix scaled = q;
    for (std::int64_t r = 0; r < q.rows; ++r)
      for (std::int64_t c = 0; c < q.cols; ++c) scaled(r, c) *= factor.values.data<double>()[c];
    return multiply(scaled, transpose(q));
  };
  EXPECT_TRUE(near(rebuilt(read.a).v, matrix_of(before.a.average).v, 32 * 5 * eps<double>));
  EXPECT_TRUE(near(rebuilt(read.g).v, matrix_of(before.g.average).v, 32 * 5 * eps<double>));
  // 1/N sum over samples of (Q_g' dW Q_a)^2, with each sample's own gradient.
  const Matrix qa = matrix_of(read.a.vectors), qg = matrix_of(read.g.vectors);
  Matrix expected(2, 5);
  for (std::int64_t n = 0; n < kSamples; ++n) {
    Matrix g(2, 1), x(1, 5);
    g.v = second.dy.row(n);
    x.v = second.x.row(n);
    for (double& e : g.v) e *= kSamples;
    const Matrix p = multiply(multiply(transpose(qg), multiply(g, x)), qa);
    for (std::size_t i = 0; i < 10; ++i) expected.v[i] += p.v[i] * p.v[i] / kSamples;
  }
  EXPECT_TRUE(near(matrix_of(read.scales).v, expected.v, kSum));
}

TEST(ReadFactors, AreOnTheOwnerAndInversesOnItsWorkers) {
  const Batch first = random_batch(kFirst, kPositions, 10), second = random_batch(kSecond, 1, 11);
  TwoLayers alone(factor_options());
  alone.step(first, second);
  const LayerFactors whole = alone.first();
  for (const double workers : {0.0, 1.0}) {
    CurvatureOptions options = factor_options();
    // This rank's mean of its half: its gradients are twice those of the whole batch.
    options.loss_reduction = LossReduction::global_mean;
    options.distribution.grad_worker_fraction = workers;
    comm::run_ranks(2, [&](std::shared_ptr<comm::Communicator> comm) {
      const int rank = comm->rank();
      TwoLayers layers(options, std::move(comm));
      layers.step(first, second);
      const LayerFactors read = layers.first();
      const bool owner = read.owner == rank;
      EXPECT_EQ(read.a.average.is_set(), owner);
      EXPECT_EQ(read.g.statistics, owner ? 1 : 0);
      EXPECT_EQ(read.a.inverse.is_set(), owner || workers == 1);
      if (owner) {
        EXPECT_TRUE(near(matrix_of(read.a.average).v, matrix_of(whole.a.average).v, kSum));
      }
      if (owner || workers == 1) {
        EXPECT_TRUE(near(matrix_of(read.g.inverse).v, matrix_of(whole.g.inverse).v, kInverse));
      }
    });
  }
}

TEST(ReadFactors, OfALayerWithAZeroFactorDivideByTheDamping) {
  const Batch first = random_batch(kFirst, kPositions, 12);
  Batch second = random_batch(kSecond, 1, 13);
  std::ranges::fill(second.dy.v, 0);
  TwoLayers layers(factor_options());
  layers.step(first, second);
  const LayerFactors read = layers.second();
  EXPECT_EQ(matrix_of(read.g.average).v, Matrix(2, 2).v);
  EXPECT_GT(trace(matrix_of(read.a.average)), 1);
  for (const kfac::FactorCopy* factor : {&read.a, &read.g}) {
    EXPECT_NEAR(factor->damping.at(0), 0.1, eps<double>);  // the root of 0.01
    const std::int64_t d = factor->inverse.shape()[0];
    EXPECT_TRUE(near(matrix_of(factor->inverse).v, identity(d, 10).v, 8 * eps<double>));
  }
}

TEST(ReadFactors, ChangeNothing) {
  const auto train = [](bool reads) {
    CurvatureOptions options = factor_options();
    options.statistics.new_weight = 0.3;
    TwoLayers layers(options);
    for (std::uint64_t step = 0; step < 4; ++step) {
      if (reads && step > 0) (void)layers.first();
      layers.step(random_batch(kFirst, kPositions, step), random_batch(kSecond, 1, step));
      if (reads) (void)layers.second();
    }
    return layers.direction().v;
  };
  EXPECT_EQ(train(true), train(false));
}

}  // namespace
}  // namespace dkfac::testing
