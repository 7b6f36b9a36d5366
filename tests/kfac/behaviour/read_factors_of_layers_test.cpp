#include <vector>

#include <gtest/gtest.h>

#include "dkfac/optim/optimizer.h"

#include "kfac/read_factors.h"

namespace dkfac::testing {
namespace {

using namespace factors;
using kfac::LayerFactors;

Matrix group_of(const Tensor& x, std::int64_t group) {
  Matrix out(x.shape()[1], x.shape()[2]);
  std::copy_n(x.data<double>() + group * std::ssize(out.v), out.v.size(), out.v.begin());
  return out;
}

TEST(ReadFactors, AreEmptyBeforeThereAreAny) {
  kfac::Preconditioner preconditioner(comm::make_self(), factor_options());
  const LayerId fc = preconditioner.add_layer("fc", kFirst);
  const LayerId gain = preconditioner.add_layer("gain", PlainSpec{.weight = 2});
  EXPECT_THROW((void)preconditioner.read_factors(fc), InvalidArgument);
  preconditioner.prepare();
  const LayerFactors read = preconditioner.read_factors(fc);
  EXPECT_EQ(read.owner, 0);
  for (const kfac::FactorCopy* factor : {&read.a, &read.g}) {
    EXPECT_FALSE(factor->average.is_set() || factor->inverse.is_set() || factor->vectors.is_set());
    EXPECT_EQ(factor->statistics, 0);
    EXPECT_TRUE(factor->damping.empty());
  }
  EXPECT_EQ(preconditioner.read_factors(gain).owner, -1);
  EXPECT_THROW((void)preconditioner.read_factors(LayerId{2}), InvalidArgument);
}

TEST(ReadFactors, OfRowsAreWholeMatrices) {
  CurvatureOptions options = factor_options();
  kfac::Preconditioner preconditioner(comm::make_self(), options);
  const LinearSpec spec{.in = 40, .out = 30, .bias = true, .max_rows = kSamples};
  const LayerId fc = preconditioner.add_layer("wide", spec);
  const Batch batch = random_batch(spec, 1, 5);
  preconditioner.record_input(fc, batch.x.view());
  preconditioner.record_grad_output(fc, batch.dy.view());
  Matrix w(30, 40);
  Vector b(30);
  (void)preconditioner.step(std::vector<kfac::LayerGrad>{{fc, w.view(), view_of(b.data(), {30})}});
  const LayerFactors read = preconditioner.read_factors(fc);
  const auto [a, g] = naive(spec, batch, 1);
  EXPECT_TRUE(near(matrix_of(read.a.average).v, a.v, kSum));
  EXPECT_TRUE(near(matrix_of(read.g.average).v, g.v, kSum));
  EXPECT_LT(residual(matrix_of(read.a.inverse), a, read.a.damping.at(0)), kInverse);
  EXPECT_LT(residual(matrix_of(read.g.inverse), g, read.g.damping.at(0)), kInverse);
}

TEST(ReadFactors, OfAnEmbeddingBesideAZeroGAreItsFrequencies) {
  Context host;
  for (const auto method : {kfac::InverseMethod::eigen, kfac::InverseMethod::cholesky}) {
    CurvatureOptions options = factor_options();
    options.inverse.method = method;
    kfac::Preconditioner preconditioner(comm::make_self(), options);
    const LayerId table =
        preconditioner.add_layer("table", EmbeddingSpec{.vocabulary = 3, .width = 2});
    Tensor words = Tensor::zeros(host, {4, 1}, DType::i32);
    words.data<std::int32_t>()[3] = 2;
    const Tensor none = Tensor::zeros(host, {4, 1, 2}, DType::f64);
    Tensor gradient = Tensor::zeros(host, {3, 2}, DType::f64);
    gradient.data<double>()[0] = 1;
    preconditioner.record_input(table, words);
    preconditioner.record_grad_output(table, none);
    (void)preconditioner.step(std::vector<kfac::LayerGrad>{{table, gradient, {}}});
    EXPECT_EQ(gradient.data<double>()[0], 1 / options.damping);
    const LayerFactors read = preconditioner.read_factors(table);
    const bool eigen = method == kfac::InverseMethod::eigen;
    EXPECT_EQ(read.a.values.is_set(), eigen);  // Control: an inverse is that of zero.
    if (!eigen) {
      EXPECT_EQ(read.a.inverse.data<double>()[0], 1 / read.a.damping.at(0));
      continue;
    }
    const double frequencies[] = {0.75, 0, 0.25};
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(read.a.values.data<double>()[i], frequencies[i]);
  }
}

TEST(ReadFactors, OfGroupsHaveOneMatrixEach) {
  kfac::Preconditioner preconditioner(comm::make_self(), factor_options());
  const Conv2dSpec spec{.in = 4, .out = 6, .bias = true, .groups = 2};
  const LayerId conv = preconditioner.add_layer("conv", spec);
  Random random(8);
  const Matrix x = random_matrix(kSamples, 4, random), dy = random_matrix(kSamples, 6, random);
  preconditioner.record_input(conv, x.view().reshape({kSamples, 1, 1, 4}));
  preconditioner.record_grad_output(conv, dy.view().reshape({kSamples, 1, 1, 6}));
  Vector w(12), b(6);
  (void)preconditioner.step(
      std::vector<kfac::LayerGrad>{{conv, view_of(w.data(), {12}), view_of(b.data(), {6})}});
  const LayerFactors read = preconditioner.read_factors(conv);
  EXPECT_EQ(read.a.average.shape(), (Shape{2, 3, 3}));
  EXPECT_EQ(read.g.inverse.shape(), (Shape{2, 3, 3}));
  ASSERT_EQ(read.a.damping.size(), 2U);
  for (std::int64_t group = 0; group < 2; ++group) {
    Batch part{Matrix(kSamples, 2), Matrix(kSamples, 3)};
    for (std::int64_t n = 0; n < kSamples; ++n) {
      for (std::int64_t c = 0; c < 2; ++c) part.x(n, c) = x(n, 2 * group + c);
      for (std::int64_t c = 0; c < 3; ++c) part.dy(n, c) = dy(n, 3 * group + c);
    }
    const auto [a, g] = naive(LinearSpec{.in = 2, .out = 3}, part, 1);
    const auto at = static_cast<std::size_t>(group);
    EXPECT_TRUE(near(group_of(read.a.average, group).v, a.v, kSum));
    EXPECT_TRUE(near(group_of(read.g.average, group).v, g.v, kSum));
    EXPECT_LT(residual(group_of(read.a.inverse, group), a, read.a.damping[at]), kInverse);
    EXPECT_LT(residual(group_of(read.g.inverse, group), g, read.g.damping[at]), kInverse);
  }
}

TEST(ReadFactors, OfABatchNormAreItsFisher) {
  const Batch batch = random_batch(LinearSpec{.in = 2, .out = 2}, 1, 9);
  const Vector mean{0.1, -0.2}, inv_std{1.5, 0.5};
  Matrix fisher(4, 4);  // Of [gamma | beta].
  for (std::int64_t n = 0; n < kSamples; ++n) {
    Vector g(4);
    for (std::size_t c = 0; c < 2; ++c) {
      const auto i = static_cast<std::int64_t>(c);
      g[2 + c] = kSamples * batch.dy(n, i);
      g[c] = g[2 + c] * (batch.x(n, i) - mean[c]) * inv_std[c];
    }
    add_outer(fisher, g, 1.0 / kSamples);
  }
  for (const auto mode : {kfac::NormFisher::unit_wise, kfac::NormFisher::full}) {
    CurvatureOptions options = factor_options();
    options.statistics.norm_fisher = mode;
    kfac::Preconditioner preconditioner(comm::make_self(), options);
    const LayerId bn = preconditioner.add_layer("bn", NormSpec{.channels = 2});
    preconditioner.record_normalization(bn, batch.x.view(), view_of(mean.data(), {2}),
                                        view_of(inv_std.data(), {2}), batch.dy.view());
    Vector gamma(2), beta(2);
    (void)preconditioner.step(
        std::vector<kfac::LayerGrad>{{bn, view_of(gamma.data(), {2}), view_of(beta.data(), {2})}});
    const LayerFactors read = preconditioner.read_factors(bn);
    EXPECT_FALSE(read.a.average.is_set());
    if (mode == kfac::NormFisher::full) {
      EXPECT_FALSE(read.norm.is_set());
      EXPECT_TRUE(near(matrix_of(read.g.average).v, fisher.v, kSum));
      EXPECT_LT(residual(matrix_of(read.g.inverse), fisher, options.damping), kInverse);
      continue;
    }
    EXPECT_FALSE(read.g.average.is_set());
    const Vector expected{fisher(0, 0), fisher(1, 1), fisher(0, 2),
                          fisher(1, 3), fisher(2, 2), fisher(3, 3)};
    EXPECT_TRUE(near(matrix_of(read.norm).v, expected, kSum));
  }
}

TEST(ReadFactors, OfTheOptimizerAreThoseOfThePreconditioner) {
  const Batch batch = random_batch(kSecond, 1, 14);
  CurvatureOptions options = factor_options();
  Matrix w(2, 5), dw(2, 5);
  kfac::Preconditioner preconditioner(comm::make_self(), options);
  const LayerId fc = preconditioner.add_layer("fc", kSecond);
  preconditioner.record_input(fc, batch.x.view());
  preconditioner.record_grad_output(fc, batch.dy.view());
  (void)preconditioner.step(std::vector<kfac::LayerGrad>{{fc, dw.view(), {}}});
  const LayerFactors expected = preconditioner.read_factors(fc);
  for (const bool second_order : {true, false}) {
    const auto optimizer = second_order
                               ? optim::make_kfac(comm::make_self(), {.curvature = options})
                               : optim::make_sgd(comm::make_self(), {});
    const LayerId id = optimizer->add_layer("fc", kSecond, {w.view(), {}, dw.view(), {}});
    if (second_order) {
      EXPECT_THROW((void)optimizer->read_factors(id), InvalidArgument);
    }
    optimizer->prepare();
    optimizer->record_input(id, batch.x.view(), Stream::cpu(), {});
    optimizer->record_grad_output(id, batch.dy.view(), Stream::cpu(), {});
    optimizer->grads_ready(id, Stream::cpu(), {});
    EXPECT_TRUE(optimizer->step({.lr = 0.1}, Stream::cpu()).updated);
    const LayerFactors read = optimizer->read_factors(id);
    EXPECT_EQ(read.owner, second_order ? 0 : -1);
    EXPECT_EQ(read.a.average.is_set(), second_order);
    if (!second_order) continue;
    EXPECT_EQ(matrix_of(read.a.average).v, matrix_of(expected.a.average).v);
    EXPECT_EQ(matrix_of(read.g.inverse).v, matrix_of(expected.g.inverse).v);
  }
}

}  // namespace
}  // namespace dkfac::testing
