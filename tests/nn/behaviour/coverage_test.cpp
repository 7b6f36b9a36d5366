// K-FAC through a network of grouped, depthwise, dilated and `same` convolutions: every layer has
// factors, and each step is that of dense matrices built from plain loops.

#include <algorithm>
#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "dkfac/nn/kfac_attach.h"

#include "nn/nn_support.h"
#include "support/both_backends.h"
#include "support/naive_conv.h"
#include "support/natural_gradient.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;
using fisher::Images;
using fisher::Matrix;
using fisher::Vector;

constexpr std::int64_t kBatch = 5, kCoveredClasses = 3;
constexpr double kDamping = 0.05, kRate = 1.0 / 64;
constexpr double kTolerance = 219 * 1e2 * eps<double>;

std::unique_ptr<Model> model_of_all_kinds(Context& ctx) {
  auto net = std::make_unique<Sequential>();
  net->add<Conv2d>(
         "grouped", 4, 6,
         ConvOptions{
             .window = {.kernel_h = 3, .kernel_w = 3, .stride_h = 2, .pad_h = 1, .pad_w = 1},
             .groups = 2})
      .add<Relu>("relu1")
      .add<Conv2d>(
          "depthwise", 6, 6,
          ConvOptions{
              .window = {.kernel_h = 3, .kernel_w = 2}, .groups = 6, .same = true, .bias = false})
      .add<Conv2d>(
          "dilated", 6, 4,
          ConvOptions{
              .window = {.kernel_h = 3, .kernel_w = 3, .pad_h = 2, .pad_w = 1, .dilation_h = 2},
              .bias = false})
      .add<Relu>("relu2")
      .add<Conv2d>("same", 4, 3,
                   ConvOptions{.window = {.kernel_h = 1, .kernel_w = 4}, .same = true})
      .add<Flatten>("flatten")
      .add<Linear>("fc", 3 * 4 * 6, kCoveredClasses);
  return std::make_unique<Model>(ctx, "kinds", std::move(net), Shape{7, 6, 4}, DType::f64, 3);
}

/// Input of a layer in a step, and its output's gradient of the mean loss.
struct Seen {
  Shape input, output;
  Vector x, dy;
};

/// Records the observer calls and forwards them to the attachment.
class Tap final : public LayerObserver {
 public:
  Tap(Context& ctx, LayerObserver& inner) : ctx_(ctx), inner_(inner) {}
  void on_forward(Layer& layer, ConstTensorView x) override {
    seen[layer.name()].input = x.shape();
    seen[layer.name()].x = values(ctx_, x);
    inner_.on_forward(layer, x);
  }
  void on_backward(Layer& layer, ConstTensorView dy) override {
    seen[layer.name()].output = dy.shape();
    seen[layer.name()].dy = values(ctx_, dy);
    inner_.on_backward(layer, dy);
  }
  void on_normalization(Layer&, ConstTensorView, ConstTensorView, ConstTensorView,
                        ConstTensorView) override {}
  void on_gradients(Layer& layer) override { inner_.on_gradients(layer); }
  std::map<std::string, Seen> seen;

 private:
  Context& ctx_;
  LayerObserver& inner_;
};

/// Channels [first, first + count) of rows of `channels`.
Vector channels_of(const Vector& x, std::int64_t channels, std::int64_t first, std::int64_t count) {
  Vector out;
  for (std::size_t row = 0; row < x.size(); row += static_cast<std::size_t>(channels)) {
    const auto from = x.begin() + static_cast<std::ptrdiff_t>(row) + first;
    out.insert(out.end(), from, from + count);
  }
  return out;
}

/// One group of a layer: rows of inputs (a last 1 for a bias) and of output gradients, one of each
/// per sample and position.
struct Rows {
  Matrix a, g;
};

Rows rows_of(const Conv2d& conv, const Seen& s, std::int64_t group) {
  const ConvOptions& o = conv.options();
  const std::int64_t in = conv.in() / o.groups, out = conv.out() / o.groups;
  const Conv2dSpec spec{.in = in, .out = out, .window = o.window, .bias = o.bias, .same = o.same};
  const Images before{s.input[0], s.input[1], s.input[2]};
  const Images after{s.output[0], s.output[1], s.output[2]};
  return {fisher::naive_patches(spec, before, channels_of(s.x, conv.in(), group * in, in),
                                ops::Layout::nhwc),
          fisher::naive_positions(spec, after, channels_of(s.dy, conv.out(), group * out, out))};
}

Rows rows_of(const Linear& linear, const Seen& s) {
  Rows rows{Matrix(s.input[0], linear.in() + 1), Matrix(s.output[0], linear.out())};
  for (std::int64_t n = 0; n < rows.a.rows; ++n) {
    for (std::int64_t i = 0; i < linear.in(); ++i) {
      rows.a(n, i) = s.x[static_cast<std::size_t>(n * linear.in() + i)];
    }
    rows.a(n, linear.in()) = 1;
  }
  rows.g.v = s.dy;
  return rows;
}

/// The step of one group by its definition: (F + lambda I)^-1 V with dense F = G (x) A, or the two
/// factors damped by pi each.
Vector direction(const Rows& rows, kfac::InverseMethod method) {
  const auto n = static_cast<double>(kBatch);
  const Matrix a = fisher::second_moment(rows.a, static_cast<double>(rows.a.rows));
  Matrix g = fisher::second_moment(rows.g, 1 / n);  // Rows are those of the mean loss: n^2 / n.
  const Matrix v = fisher::multiply(fisher::transpose(rows.g), rows.a);
  Matrix damped;
  if (method == kfac::InverseMethod::eigen) {
    damped = fisher::plus_diagonal(fisher::kronecker(g, a), kDamping);
  } else {
    const double pi = std::sqrt(fisher::trace(a) / static_cast<double>(a.rows) /
                                (fisher::trace(g) / static_cast<double>(g.rows)));
    damped = fisher::kronecker(fisher::plus_diagonal(g, std::sqrt(kDamping) / pi),
                               fisher::plus_diagonal(a, std::sqrt(kDamping) * pi));
  }
  return fisher::solve(damped, v.v);
}

/// Directions of all groups of a layer in the memory order of its weights and biases: [dW | db] by
/// rows.
struct Direction {
  Vector weight, bias;
};
Direction direction_of(const Layer& layer, const Seen& s, kfac::InverseMethod method) {
  const auto* conv = dynamic_cast<const Conv2d*>(&layer);
  const auto& linear = dynamic_cast<const Linear*>(&layer);
  const std::int64_t groups = conv != nullptr ? conv->options().groups : 1;
  const bool has_bias = conv != nullptr ? conv->options().bias : linear->has_bias();
  Direction out;
  for (std::int64_t group = 0; group < groups; ++group) {
    const Rows rows = conv != nullptr ? rows_of(*conv, s, group) : rows_of(*linear, s);
    Matrix u(rows.g.cols, rows.a.cols);
    u.v = direction(rows, method);
    for (std::int64_t o = 0; o < u.rows; ++o) {
      const Vector row = u.row(o);
      const auto width = static_cast<std::ptrdiff_t>(row.size()) - (has_bias ? 1 : 0);
      out.weight.insert(out.weight.end(), row.begin(), row.begin() + width);
      if (has_bias) out.bias.push_back(row.back());
    }
  }
  return out;
}

kfac::InverseMethod other_than(kfac::InverseMethod method) {
  return method == kfac::InverseMethod::eigen ? kfac::InverseMethod::cholesky
                                              : kfac::InverseMethod::eigen;
}

class Coverage : public BothBackends {
 protected:
  /// Runs two steps without momentum, each compared with its dense definition.
  void follow(kfac::InverseMethod method) {
    const auto model = model_of_all_kinds(ctx);
    optim::KfacOptions options{.curvature = natural_gradient()};
    options.curvature.damping = kDamping;
    options.curvature.statistics.new_weight = 1;
    options.curvature.inverse.method = method;
    options.curvature.dtype = DType::f64;
    options.curvature.statistics.low_rank = false;
    options.momentum = 0;
    const auto optimizer =
        optim::make_kfac(comm::make_self(), options, Device::cpu(), {.backend = GetParam()});
    OptimizerAttachment attachment(*model, *optimizer);
    attachment.set_scale({.global_batch = kBatch});
    optimizer->prepare();
    EXPECT_EQ(optimizer->describe().find("plain"), std::string::npos) << optimizer->describe();
    Tap tap(ctx, attachment);
    model->set_observer(&tap);
    for (const std::uint64_t step : {1U, 2U}) {
      const Tensor x = random_tensor(ctx, Shape{kBatch, 7, 6, 4}, DType::f64, step);
      const Tensor dy =
          random_tensor(ctx, Shape{kBatch, kCoveredClasses}, DType::f64, 10 + step, -0.3, 0.3);
      const Vector before = values(ctx, model->parameters());
      model->forward(ctx, x, Mode::train);
      model->backward(ctx, dy);
      ASSERT_TRUE(optimizer->step({.lr = kRate, .flags = {}}, Stream::cpu()).updated);
      Vector moved = values(ctx, model->parameters());
      for (std::size_t i = 0; i < moved.size(); ++i) moved[i] = (before[i] - moved[i]) / kRate;
      compare(*model, tap, moved, method);
    }
  }

 private:
  static void compare(Model& model, const Tap& tap, const Vector& moved,
                      kfac::InverseMethod method) {
    auto at = moved.begin();
    const auto take = [&](std::size_t count) {
      const Vector part(at, at + static_cast<std::ptrdiff_t>(count));
      at += static_cast<std::ptrdiff_t>(count);
      return part;
    };
    int compared = 0;
    model.visit([&](Layer& layer) {
      if (layer.parameters().empty()) return;
      const Direction expected = direction_of(layer, tap.seen.at(layer.name()), method);
      const Vector weight = take(expected.weight.size());
      // Up to 219 unknowns, conditioned like |F| / lambda, about 1e2.
      EXPECT_TRUE(near(weight, expected.weight, kTolerance)) << layer.name();
      const Direction other = direction_of(layer, tap.seen.at(layer.name()), other_than(method));
      EXPECT_FALSE(near(weight, other.weight, 1e-3)) << layer.name();
      EXPECT_TRUE(near(take(expected.bias.size()), expected.bias, kTolerance)) << layer.name();
      ++compared;
    });
    EXPECT_EQ(compared, 5);
    EXPECT_EQ(at, moved.end());
  }
};
DKFAC_BOTH_BACKENDS(Coverage);

TEST_P(Coverage, OfGroupedDepthwiseDilatedAndSameConvolutionsIsExactWithEigenvectors) {
  follow(kfac::InverseMethod::eigen);
}

TEST_P(Coverage, OfGroupedDepthwiseDilatedAndSameConvolutionsIsExactWithInverses) {
  follow(kfac::InverseMethod::cholesky);
}

TEST(CoverageReport, NamesWhatHasNoCurvatureWithTheReason) {
  Context ctx;
  auto net = std::make_unique<Sequential>();
  ConvOptions fixed = ConvOptions::square(3, {.pad = 1});
  fixed.frozen = true;
  net->add<Conv2d>("stem", 2, 3, fixed)
      .add<Flatten>("flatten")
      .add<Linear>("fc", 3 * 16, kCoveredClasses);
  Model model(ctx, "frozen", std::move(net), Shape{4, 4, 2}, DType::f64, 3);
  optim::KfacOptions options{.curvature = natural_gradient()};
  options.curvature.dtype = DType::f64;
  const auto optimizer = optim::make_kfac(comm::make_self(), options);
  const OptimizerAttachment attachment(model, *optimizer);
  optimizer->prepare();
  const std::string text = optimizer->describe();
  const std::size_t line = text.find("stem");
  ASSERT_NE(line, std::string::npos) << text;
  EXPECT_TRUE(contains(text.substr(line, text.find('\n', line) - line), "no trained weight"));
}

}  // namespace
}  // namespace dkfac::nn
