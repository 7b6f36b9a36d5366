// EKFAC (George et al. 2018): second moments of per-sample gradients in a Kronecker basis.
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/kfac/inverse.h"
#include "dkfac/kfac/statistics.h"

#include "support/both_backends.h"
#include "support/fisher.h"
#include "support/naive_conv.h"
#include "support/near.h"
#include "support/not_finite.h"
#include "support/tiny_net.h"

namespace dkfac::kfac {
namespace {

using namespace testing::fisher;
using testing::BothBackends;
using testing::eps;
using testing::near;
using testing::values;

/// Orthonormal columns, by Gram-Schmidt.
Matrix random_basis(std::int64_t n, Random& random) {
  Matrix q = random_matrix(n, n, random);
  for (std::int64_t c = 0; c < n; ++c) {
    for (int twice = 0; twice < 2; ++twice) {
      for (std::int64_t b = 0; b < c; ++b) {
        double dot = 0;
        for (std::int64_t r = 0; r < n; ++r) dot += q(r, b) * q(r, c);
        for (std::int64_t r = 0; r < n; ++r) q(r, c) -= dot * q(r, b);
      }
    }
    double norm = 0;
    for (std::int64_t r = 0; r < n; ++r) norm += q(r, c) * q(r, c);
    for (std::int64_t r = 0; r < n; ++r) q(r, c) /= std::sqrt(norm);
  }
  return q;
}

/// 1/N sum over samples of (Q_g' dW Q_a)^2 by per-sample gradients; rows of one sample are
/// consecutive.
Vector naive_scales(const Matrix& inputs, const Matrix& gradients, std::int64_t positions,
                    const Matrix& qa, const Matrix& qg, double batch, double s) {
  Vector out(static_cast<std::size_t>(gradients.cols * inputs.cols));
  for (std::int64_t n = 0; n < inputs.rows / positions; ++n) {
    Matrix dw(gradients.cols, inputs.cols);
    for (std::int64_t p = n * positions; p < (n + 1) * positions; ++p) {
      for (std::int64_t o = 0; o < dw.rows; ++o) {
        for (std::int64_t i = 0; i < dw.cols; ++i) dw(o, i) += s * gradients(p, o) * inputs(p, i);
      }
    }
    const Matrix projected = multiply(multiply(transpose(qg), dw), qa);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] += projected.v[i] * projected.v[i] / batch;
  }
  return out;
}

class EkfacScales : public BothBackends {
 protected:
  Vector scales_of(const LayerSpec& spec, ConstTensorView x, ConstTensorView dy, ConstTensorView qa,
                   ConstTensorView qg, double batch, double s,
                   WeightSharing sharing = WeightSharing::expand) {
    Tensor out = Tensor::empty(ctx, {g_dim(spec), a_dim(spec)}, qa.dtype());
    ops::fill(ctx, out, kNan);
    compute_ekfac_scales(ctx, spec, x,
                         {.data = dy, .global_batch = batch, .sample_scale = s, .sharing = sharing},
                         qa, qg, 0, out);
    return values(ctx, out);
  }
};
DKFAC_BOTH_BACKENDS(EkfacScales);

TEST_P(EkfacScales, OfALinearLayerEqualPerSampleGradients) {
  Random random(1);
  for (const bool bias : {false, true}) {
    // Few and many positions: both orders of the products.
    for (const std::int64_t positions : {1, 2, 40}) {
      const LinearSpec spec{5, 4, bias};
      const Matrix x = random_matrix(6 * positions, 5, random);
      const Matrix dy = random_matrix(6 * positions, 4, random);
      const Matrix inputs = bias ? join_bias(x, Vector(static_cast<std::size_t>(x.rows), 1.0)) : x;
      const Matrix qa = random_basis(a_dim(spec), random), qg = random_basis(4, random);
      const Vector expected = naive_scales(inputs, dy, positions, qa, qg, 9.5, 0.5);
      const auto x3 = x.view().reshape({6, positions, 5}),
                 dy3 = dy.view().reshape({6, positions, 4});
      EXPECT_TRUE(near(scales_of(spec, x3, dy3, qa.view(), qg.view(), 9.5, 0.5), expected, 1e-12));
      // 64 n eps: n = 5 positions products, squared, of two projections.
      const Tensor x32 = tensor(ctx, x.v, {6, positions, 5}, DType::f32);
      const Tensor dy16 = tensor(ctx, dy.v, {6, positions, 4}, DType::f32);
      const Tensor qa32 = tensor(ctx, qa.v, qa.view().shape(), DType::f32);
      const Tensor qg32 = tensor(ctx, qg.v, qg.view().shape(), DType::f32);
      EXPECT_TRUE(near(scales_of(spec, x32, dy16, qa32, qg32, 9.5, 0.5), expected,
                       64 * 5 * static_cast<double>(positions) * eps<float>));
      // Control: other bases give others.
      const Matrix other = random_basis(4, random);
      EXPECT_FALSE(
          near(scales_of(spec, x3, dy3, qa.view(), other.view(), 9.5, 0.5), expected, 0.01));
    }
  }
}

TEST_P(EkfacScales, OfAConvolutionEqualPerSampleGradients) {
  Random random(2);
  const Images in{3, 6, 5};
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
    for (const int groups : {1, 2, 4}) {
      Conv2dSpec spec{
          .in = 4, .out = 8, .window = {.kernel_h = 3, .kernel_w = 2, .pad_h = 1, .pad_w = 1}};
      spec.window.stride_w = 2;
      spec.layout = layout;
      spec.groups = groups;
      const Images out = output_of(spec, in);
      const std::int64_t positions = out.h * out.w, d = a_dim(spec), o = g_dim(spec);
      const Vector x = random_vector(in.n * in.h * in.w * 4, random);
      const Vector dy = random_vector(out.n * positions * 8, random);
      Vector qa, qg, expected;
      const auto append = [](Vector& to, const Vector& more) {
        to.insert(to.end(), more.begin(), more.end());
      };
      for (std::int64_t i = 0; i < groups; ++i) {
        const Matrix a = random_basis(d, random), g = random_basis(o, random);
        append(expected, naive_scales(naive_patches(spec, in, x, layout, i),
                                      naive_positions(spec, out, dy, i), positions, a, g, 7, 3));
        append(qa, a.v);
        append(qg, g.v);
      }
      const auto shape = [&](std::int64_t r, std::int64_t c) {
        return groups == 1 ? Shape{r, c} : Shape{groups, r, c};
      };
      Tensor scales = Tensor::empty(ctx, shape(o, d), DType::f64);
      ops::fill(ctx, scales, kNan);
      compute_ekfac_scales(ctx, spec, view_of(x.data(), activation_shape(layout, in, 4)),
                           {.data = view_of(dy.data(), activation_shape(layout, out, 8)),
                            .global_batch = 7,
                            .sample_scale = 3},
                           view_of(qa.data(), shape(d, d)), view_of(qg.data(), shape(o, o)), 0,
                           scales);
      EXPECT_TRUE(near(values(ctx, scales), expected, 1e-12)) << describe(spec);
    }
  }
}

TEST_P(EkfacScales, BetaKeepsAShareAndPartsAddUp) {
  Random random(3);
  const LinearSpec spec{3, 2, false};
  const Matrix x = random_matrix(10, 3, random), dy = random_matrix(10, 2, random);
  const Matrix qa = random_basis(3, random), qg = random_basis(2, random);
  Matrix sum = random_matrix(2, 3, random);
  const Vector start = sum.v;
  const auto x3 = x.view().reshape({5, 2, 3}), dy3 = dy.view().reshape({5, 2, 2});
  double beta = 0.25;
  std::int64_t first = 0;
  for (const std::int64_t count : {2, 0, 3}) {
    compute_ekfac_scales(ctx, spec, x3.slice(0, first, count),
                         {.data = dy3.slice(0, first, count), .global_batch = 5, .sample_scale = 2},
                         qa.view(), qg.view(), beta, sum.view());
    first += count;
    beta = 1;
  }
  const Vector whole = naive_scales(x, dy, 2, qa, qg, 5, 2);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    EXPECT_NEAR(sum.v[i], 0.25 * start[i] + whole[i], 1e-12 * (1 + whole[i]));
  }
}

TEST_P(EkfacScales, ReduceTakesTheOuterProductOfSumAndMean) {
  Random random(4);
  const LinearSpec spec{3, 2, true};
  const Matrix x = random_matrix(12, 3, random), dy = random_matrix(12, 2, random);
  Matrix mean(3, 4), sum(3, 2);  // 3 samples of 4 positions
  for (std::int64_t r = 0; r < 12; ++r) {
    for (std::int64_t c = 0; c < 3; ++c) mean(r / 4, c) += x(r, c) / 4;
    for (std::int64_t c = 0; c < 2; ++c) sum(r / 4, c) += dy(r, c);
    mean(r / 4, 3) = 1;
  }
  const Matrix qa = random_basis(4, random), qg = random_basis(2, random);
  const Vector expected = naive_scales(mean, sum, 1, qa, qg, 3, 1);
  const auto x3 = x.view().reshape({3, 4, 3}), dy3 = dy.view().reshape({3, 4, 2});
  EXPECT_TRUE(near(scales_of(spec, x3, dy3, qa.view(), qg.view(), 3, 1, WeightSharing::reduce),
                   expected, 1e-13));
  EXPECT_FALSE(near(scales_of(spec, x3, dy3, qa.view(), qg.view(), 3, 1), expected, 0.1));
}

/// Eigenvectors and eigenvalues of the factors of samples, by the library, and the scales there.
struct Bases {
  Matrix qa, qg;
  Vector products;  ///< w_g w_a', [out, d].
};
Bases bases_of(Context& ctx, const Matrix& a, const Matrix& g) {
  const auto decompose = [&](const Matrix& m, Matrix& q) {
    Vector w(static_cast<std::size_t>(m.rows));
    q = m;
    std::int32_t info = 0;
    ops::eigh(ctx, q.view(), view_of(w.data(), {m.rows}), view_of(&info, {1}));
    EXPECT_EQ(info, 0);
    return w;
  };
  Bases out;
  const Vector wa = decompose(a, out.qa), wg = decompose(g, out.qg);
  out.products = outer(wg, wa);
  return out;
}

/// |F - Q diag(values) Q'| / |F|, Q = Q_g (x) Q_a.
double distance(const Matrix& fisher, const Bases& bases, const Vector& diagonal) {
  const Matrix q = kronecker(bases.qg, bases.qa);
  Matrix scaled = q;
  for (std::int64_t r = 0; r < q.rows; ++r) {
    for (std::int64_t c = 0; c < q.cols; ++c) scaled(r, c) *= diagonal[static_cast<std::size_t>(c)];
  }
  return relative_norm(multiply(scaled, transpose(q)).v, fisher.v);
}

TEST_P(EkfacScales, AreNearerToTheFisherThanTheProductUnlessThatIsExact) {
  Random random(5);
  const std::int64_t n = 24;
  for (const bool exact : {false, true}) {
    // A ReLU network's first layer; or one sample's gradient under inputs that all are the same.
    const TinyNet net = TinyNet::random({4, 3, 2}, Activation::relu, random, 2);
    Matrix x = random_matrix(n, 4, random);
    if (exact) {
      for (std::int64_t r = 1; r < n; ++r) {
        for (std::int64_t c = 0; c < 4; ++c) x(r, c) = x(0, c);
      }
    }
    Matrix gradients(n, 3), fisher(15, 15);
    for (std::int64_t r = 0; r < n; ++r) {
      const Trace trace = net.backward(net.forward(x.row(r)), random_vector(2, random)).front();
      std::copy(trace.g.begin(), trace.g.end(), gradients.v.begin() + r * 3);
      add_outer(fisher, outer(trace.g, trace.a), 1.0 / n);
    }
    const Matrix a = second_moment(join_bias(x, Vector(n, 1.0)), n);
    const Bases bases = bases_of(ctx, a, second_moment(gradients, n));
    const Vector scales = scales_of(LinearSpec{4, 3}, x.view(), gradients.view(), bases.qa.view(),
                                    bases.qg.view(), n, 1);
    const double ekfac = distance(fisher, bases, scales);
    const double kfac = distance(fisher, bases, bases.products);
    if (exact) {
      // 100 d out eps: eigenvectors of matrices of width 5 and 3.
      EXPECT_LE(kfac, 100 * 15 * eps<double>);
      EXPECT_LE(ekfac, 100 * 15 * eps<double>);
    } else {
      EXPECT_LT(ekfac, 0.95 * kfac);
      EXPECT_GT(ekfac, 0.01);  // a diagonal in this basis is not the Fisher matrix either
      // The best diagonal: any other is further away.
      Vector other = scales;
      other[3] *= 1.1;
      EXPECT_LT(ekfac, distance(fisher, bases, other));
    }
  }
}

TEST_P(EkfacScales, RefuseWrongArguments) {
  const LinearSpec spec{3, 2, false};
  Matrix x(4, 3), dy(4, 2), qa(3, 3), qg(2, 2), out(2, 3);
  const auto run = [&](const LayerSpec& layer, ConstTensorView in, ConstTensorView grad,
                       ConstTensorView a, ConstTensorView g, double batch, TensorView scales) {
    compute_ekfac_scales(ctx, layer, in, {.data = grad, .global_batch = batch}, a, g, 0, scales);
  };
  EXPECT_NO_THROW(run(spec, x.view(), dy.view(), qa.view(), qg.view(), 4, out.view()));
  EXPECT_THROW(run(spec, x.view(), dy.view().slice(0, 0, 3), qa.view(), qg.view(), 4, out.view()),
               InvalidArgument);
  EXPECT_THROW(run(spec, x.view(), dy.view(), qg.view(), qg.view(), 4, out.view()),
               InvalidArgument);
  EXPECT_THROW(run(spec, x.view(), dy.view(), qa.view(), qg.view(), 0, out.view()),
               InvalidArgument);
  EXPECT_THROW(run(spec, x.view(), dy.view(), qa.view(), qg.view(), 4, out.view().transposed()),
               InvalidArgument);
  EXPECT_THROW(run(PlainSpec{}, x.view(), dy.view(), qa.view(), qg.view(), 4, out.view()),
               InvalidArgument);
}

}  // namespace
}  // namespace dkfac::kfac
