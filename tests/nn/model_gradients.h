#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/nn/loss.h"
#include "dkfac/nn/model.h"

#include "nn/nn_support.h"

namespace dkfac::testing {

/// Compares `probes` derivatives of the summed loss of an f64 model, at random places, with
/// two-sided differences. Where ReLU or a maximum has a kink within the step, the slopes to both
/// sides differ and the place is left out; more than `least` have to remain.
inline void expect_gradients_match(Context& ctx, nn::Model& model, const Tensor& x,
                                   const std::vector<std::int32_t>& labels, int probes,
                                   std::size_t least) {
  const Shape logits{static_cast<std::int64_t>(labels.size()), model.outputs()};
  Tensor grad = Tensor::empty(ctx, logits, DType::f64);
  const auto loss = [&](TensorView g) {
    const ConstTensorView y = model.forward(ctx, x, nn::Mode::train);
    return nn::softmax_cross_entropy(ctx, y, labels, 0.1, 1, g).loss;
  };
  const double here = loss(grad);
  model.backward(ctx, grad);
  const auto analytic = values(ctx, model.gradients());
  double* weights = model.parameters().data<double>();
  const double step = 1e-6;
  Random random(3);
  std::vector<double> numeric, expected;
  for (int k = 0; k < probes; ++k) {
    const auto i = random.below(analytic.size());
    const double before = weights[i];
    weights[i] = before + step;
    const double above = loss({}) - here;
    weights[i] = before - step;
    const double below = here - loss({});
    weights[i] = before;
    if (std::abs(above - below) > 1e-3 * step) continue;
    numeric.push_back((above + below) / (2 * step));
    expected.push_back(analytic[i]);
  }
  EXPECT_GT(numeric.size(), least);
  // Differences of a loss of about 10 with the step 1e-6 leave 10 eps / step.
  EXPECT_TRUE(near(numeric, expected, 1e-6)) << model.name();
}

}  // namespace dkfac::testing
