// Products with the Hessian of a sample's loss.
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/nn/loss.h"

#include "support/near.h"

namespace dkfac::testing {
namespace {

constexpr std::int64_t kCurvatureRows = 3, kCurvatureClasses = 5;
const Shape kCurvatureShape{kCurvatureRows, kCurvatureClasses};

std::vector<double> some(double seed) {
  std::vector<double> x;
  for (int i = 0; i < kCurvatureRows * kCurvatureClasses; ++i)
    x.push_back(2 * std::sin(seed * (i * i + 1)));
  return x;
}

/// Fisher of each row times v: the mean over drawn classes of (p - e) (p - e)' v.
std::vector<double> fisher_times(const std::vector<double>& logits, const std::vector<double>& v) {
  std::vector<double> out(v.size());
  for (std::size_t first = 0; first < v.size(); first += kCurvatureClasses) {
    double sum = 0;
    for (std::size_t k = 0; k < kCurvatureClasses; ++k) sum += std::exp(logits[first + k]);
    const auto p = [&](std::size_t k) { return std::exp(logits[first + k]) / sum; };
    for (std::size_t drawn = 0; drawn < kCurvatureClasses; ++drawn) {
      const auto gradient = [&](std::size_t k) { return p(k) - (k == drawn ? 1 : 0); };
      double along = 0;
      for (std::size_t k = 0; k < kCurvatureClasses; ++k) along += gradient(k) * v[first + k];
      for (std::size_t k = 0; k < kCurvatureClasses; ++k)
        out[first + k] += p(drawn) * gradient(k) * along;
    }
  }
  return out;
}

using HessianProduct = void (*)(Context&, ConstTensorView, ConstTensorView, TensorView);

template <class T>
std::vector<double> hessian_product(HessianProduct curvature, const std::vector<double>& at,
                                    const std::vector<double>& v) {
  Context ctx;
  const std::vector<T> outputs(at.begin(), at.end());
  std::vector<T> in_place(v.begin(), v.end());
  const TensorView hv = view_of(in_place.data(), kCurvatureShape);
  curvature(ctx, view_of(outputs.data(), kCurvatureShape), hv, hv);
  return {in_place.begin(), in_place.end()};
}

TEST(LossCurvature, OfSoftmaxIsTheFisherOfItsClasses) {
  const std::vector<double> logits = some(1.3), v = some(0.7);
  const std::vector<double> wanted = fisher_times(logits, v);
  EXPECT_TRUE(near(hessian_product<double>(nn::softmax_curvature, logits, v), wanted,
                   10 * kCurvatureClasses * eps<double>));
  EXPECT_TRUE(near(hessian_product<float>(nn::softmax_curvature, logits, v), wanted,
                   10 * kCurvatureClasses * eps<float>));
  EXPECT_FALSE(near(hessian_product<double>(nn::softmax_curvature, v, v), wanted, 0.01));
  // Logits that all grow alike change nothing, and large ones do not overflow.
  const std::vector<double> alike(kCurvatureRows * kCurvatureClasses, 3.0);
  for (const double x : hessian_product<double>(nn::softmax_curvature, logits, alike))
    EXPECT_NEAR(x, 0, 10 * eps<double>);
  std::vector<double> large = logits;
  for (double& x : large) x += 800;
  EXPECT_TRUE(near(hessian_product<double>(nn::softmax_curvature, large, v), wanted,
                   800 * 10 * kCurvatureClasses * eps<double>));
}

TEST(LossCurvature, OfSigmoidIsTheVarianceOfEachOutput) {
  std::vector<double> logits = some(1.3), wanted;
  const std::vector<double> v = some(0.7);
  logits[0] = 800;
  logits[1] = -800;
  for (std::size_t i = 0; i < v.size(); ++i) {
    const double tanh = std::tanh(logits[i] / 2);
    wanted.push_back((1 - tanh * tanh) / 4 * v[i]);
  }
  EXPECT_TRUE(
      near(hessian_product<double>(nn::sigmoid_curvature, logits, v), wanted, 10 * eps<double>));
  EXPECT_TRUE(
      near(hessian_product<float>(nn::sigmoid_curvature, logits, v), wanted, 10 * eps<float>));
  EXPECT_FALSE(near(hessian_product<double>(nn::sigmoid_curvature, v, v), wanted, 0.01));
}

TEST(LossCurvature, OfASquaredErrorIsTheIdentity) {
  const std::vector<double> v = some(0.7);
  EXPECT_EQ(hessian_product<double>(nn::squared_curvature, some(1.3), v), v);
  Context ctx;
  std::vector<double> hv(v.size());
  nn::squared_curvature(ctx, view_of(v.data(), kCurvatureShape), view_of(v.data(), kCurvatureShape),
                        view_of(hv.data(), kCurvatureShape));
  EXPECT_EQ(hv, v);
}

TEST(LossCurvature, RefusesTensorsOfAnotherShape) {
  Context ctx;
  std::vector<double> x(15), y(12);
  for (const HessianProduct curvature :
       {&nn::softmax_curvature, &nn::sigmoid_curvature, &nn::squared_curvature})
    EXPECT_THROW(curvature(ctx, view_of(x.data(), kCurvatureShape),
                           view_of(x.data(), kCurvatureShape), view_of(y.data(), Shape{3, 4})),
                 InvalidArgument);
}

}  // namespace
}  // namespace dkfac::testing
