// One-sample Monte-Carlo Fisher of a small softmax network against its Fisher by definition: the
// sum over labels of their probability times the outer product of that label's gradient.

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "dkfac/nn/loss.h"
#include "dkfac/nn/model.h"

#include "nn/nn_support.h"
#include "support/both_backends.h"
#include "support/fisher.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;
using fisher::Matrix;
using fisher::Vector;

constexpr std::int64_t kIn = 4, kHidden = 5, kClasses = 3, kInputs = 10;

std::unique_ptr<Model> small_net(Context& ctx) {
  auto net = std::make_unique<Sequential>();
  net->add<Linear>("fc1", kIn, kHidden).add<Relu>("relu").add<Linear>("fc2", kHidden, kClasses);
  return std::make_unique<Model>(ctx, "small", std::move(net), Shape{kIn}, DType::f64, 3);
}

/// Rows [x, 1] times the weights [W | b] of a layer.
Vector affine(Model& model, const char* layer, const Vector& x, std::int64_t out) {
  Context ctx;
  const Vector w = values(ctx, model.tensor(std::string(layer) + ".weight").view);
  Vector y = values(ctx, model.tensor(std::string(layer) + ".bias").view);
  for (std::int64_t o = 0; o < out; ++o) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      y[static_cast<std::size_t>(o)] += w[static_cast<std::size_t>(o) * x.size() + i] * x[i];
    }
  }
  return y;
}

Vector with_one(Vector x) {
  x.push_back(1);
  return x;
}

/// Both layers' gradients of one sample, one after the other.
Vector gradient(Model& model, const Vector& x, const Vector& h, const Vector& p, std::size_t y) {
  Context ctx;
  const Vector w = values(ctx, model.tensor("fc2.weight").view);
  Vector delta = p;
  delta[y] -= 1;
  Vector back(kHidden);
  for (std::size_t i = 0; i < kHidden; ++i) {
    for (std::size_t k = 0; k < kClasses; ++k) back[i] += delta[k] * w[k * kHidden + i];
    if (h[i] <= 0) back[i] = 0;
  }
  Vector both = fisher::outer(back, with_one(x));
  const Vector last = fisher::outer(delta, with_one(h));
  both.insert(both.end(), last.begin(), last.end());
  return both;
}

Vector input_of(std::int64_t i) {
  Random random(21, static_cast<std::uint64_t>(i % kInputs));
  return fisher::random_vector(kIn, random, 1.5);
}

/// Mean over the inputs of the exact expectation over labels, by plain loops.
struct Exact {
  Matrix fisher;
  /// Variance of one sample's outer product around its input's Fisher, squared Frobenius norm, mean
  /// over the inputs; estimates use each input equally often.
  double variance = 0;
};
Exact exact_fisher(Model& model) {
  constexpr std::int64_t kSize = (kIn + 1) * kHidden + (kHidden + 1) * kClasses;
  Exact exact{Matrix(kSize, kSize)};
  for (std::int64_t i = 0; i < kInputs; ++i) {
    const Vector x = input_of(i);
    Vector h = affine(model, "fc1", x, kHidden);
    for (double& e : h) e = std::max(e, 0.0);
    Vector p = affine(model, "fc2", h, kClasses);
    double sum = 0;
    for (double& e : p) sum += e = std::exp(e);
    for (double& e : p) e /= sum;
    Matrix of_input(kSize, kSize);
    double fourth = 0;
    for (std::size_t y = 0; y < kClasses; ++y) {
      const Vector g = gradient(model, x, h, p, y);
      fisher::add_outer(of_input, g, p[y]);
      const double square = std::inner_product(g.begin(), g.end(), g.begin(), 0.0);
      fourth += p[y] * square * square;
    }
    for (std::size_t k = 0; k < of_input.v.size(); ++k) {
      exact.fisher.v[k] += of_input.v[k] / kInputs;
      fourth -= of_input.v[k] * of_input.v[k];
    }
    exact.variance += fourth / kInputs;
  }
  return exact;
}

double norm(const Matrix& m) {
  return std::sqrt(std::inner_product(m.v.begin(), m.v.end(), m.v.begin(), 0.0));
}

/// Keeps inputs and output gradients of the two layers, [n, ...] each.
class SampleKeeper final : public LayerObserver {
 public:
  explicit SampleKeeper(Context& ctx) : ctx_(ctx) {}
  void on_forward(Layer&, ConstTensorView x) override { inputs.push_back(keep(x)); }
  void on_backward(Layer&, ConstTensorView dy) override {
    gradients.insert(gradients.begin(), keep(dy));
  }
  void on_normalization(Layer&, ConstTensorView, ConstTensorView, ConstTensorView,
                        ConstTensorView) override {}
  [[nodiscard]] bool wants_gradients() const override { return false; }
  void on_gradients(Layer&) override {}
  std::vector<Matrix> inputs, gradients;

 private:
  Matrix keep(ConstTensorView x) {
    Matrix m(x.dim(0), x.dim(1));
    m.v = values(ctx_, x);
    return m;
  }
  Context& ctx_;
};

enum class Labels { sampled, given };

/// Mean over n samples of the outer product of each gradient of one backward pass.
Matrix estimate(Context& ctx, Model& model, std::int64_t n, std::int64_t step, Labels kind) {
  Tensor x = Tensor::empty(ctx, Shape{n, kIn}, DType::f64);
  for (std::int64_t i = 0; i < n; ++i) {
    const Vector one = input_of(i);
    std::copy(one.begin(), one.end(), x.data<double>() + i * kIn);
  }
  SampleKeeper keeper(ctx);
  model.set_observer(&keeper);
  const ConstTensorView logits = model.forward(ctx, x, Mode::train);
  std::vector<std::int32_t> labels(static_cast<std::size_t>(n));
  if (kind == Labels::sampled) {
    sample_labels(logits, {.seed = 5, .step = step}, labels);
  } else {
    for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<int>(i % kInputs % 3);
  }
  Tensor grad = Tensor::empty(ctx, logits.shape(), DType::f64);
  softmax_cross_entropy(ctx, logits, labels, 0, 1, grad);
  model.backward(ctx, grad);
  model.set_observer(nullptr);

  const std::int64_t size = (kIn + 1) * kHidden + (kHidden + 1) * kClasses;
  Matrix f(size, size);
  for (std::int64_t i = 0; i < n; ++i) {
    Vector both;
    for (std::size_t layer = 0; layer < 2; ++layer) {
      const Vector part =
          fisher::outer(keeper.gradients[layer].row(i), with_one(keeper.inputs[layer].row(i)));
      both.insert(both.end(), part.begin(), part.end());
    }
    fisher::add_outer(f, both, 1.0 / static_cast<double>(n));
  }
  return f;
}

constexpr std::array<std::int64_t, 7> kSamples{10, 30, 100, 300, 1000, 3000, 10000};

/// Root mean square over `repeats` independent estimates of |F_n - F| / |F|, for each n.
std::vector<double> errors(Context& ctx, Model& model, Labels kind, int repeats) {
  const Matrix exact = exact_fisher(model).fisher;
  std::vector<double> out;
  for (const std::int64_t n : kSamples) {
    double sum = 0;
    for (int r = 0; r < repeats; ++r) {
      const double e = fisher::relative_norm(estimate(ctx, model, n, r, kind).v, exact.v);
      sum += e * e;
    }
    out.push_back(std::sqrt(sum / repeats));
  }
  return out;
}

/// Slope of the least-squares line through (log n, log error).
double slope(const std::vector<double>& error) {
  double x_mean = 0, y_mean = 0, xy = 0, xx = 0;
  const auto count = static_cast<double>(error.size());
  const auto x_of = [](std::size_t i) { return std::log(static_cast<double>(kSamples[i])); };
  for (std::size_t i = 0; i < error.size(); ++i) {
    x_mean += x_of(i) / count;
    y_mean += std::log(error[i]) / count;
  }
  for (std::size_t i = 0; i < error.size(); ++i) {
    xy += (x_of(i) - x_mean) * (std::log(error[i]) - y_mean);
    xx += (x_of(i) - x_mean) * (x_of(i) - x_mean);
  }
  return xy / xx;
}

class MonteCarloFisher : public BothBackends {};
DKFAC_BOTH_BACKENDS(MonteCarloFisher);

// The mean of |F_n - F|^2 is V/n exactly, as samples are independent. A mean over R estimates of a
// quadratic form has a relative deviation of about sqrt(2/R) at most, 0.32 for R = 20: its root one
// of 0.16, which 0.5 is three times, and the logarithm of that 0.07 decades. The slope through 7
// points over three decades then deviates by 0.07 / sqrt(7) = 0.026; 0.1 is nearly four of these.
TEST_P(MonteCarloFisher, TendsToTheExactOneLikeTheRootOfItsSamples) {
  const auto model = small_net(ctx);
  const auto error = errors(ctx, *model, Labels::sampled, 20);
  EXPECT_NEAR(slope(error), -0.5, 0.1);
  const Exact exact = exact_fisher(*model);
  for (std::size_t i = 0; i < error.size(); ++i) {
    const double expected = std::sqrt(exact.variance / static_cast<double>(kSamples[i]));
    EXPECT_NEAR(error[i] * norm(exact.fisher) / expected, 1, 0.5) << kSamples[i];
  }
}

TEST_P(MonteCarloFisher, IsWhatTheEmpiricalFisherDoesNotTendTo) {
  const auto model = small_net(ctx);
  const auto error = errors(ctx, *model, Labels::given, 1);
  EXPECT_GT(slope(error), -0.05);
  EXPECT_GT(error.back(), 0.2);
}

}  // namespace
}  // namespace dkfac::nn
