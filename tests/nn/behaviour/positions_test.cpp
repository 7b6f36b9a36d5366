// Statistics of a Linear at several positions of one sample, against the definitions of expand and
// reduce (Eschenhagen et al. 2023) by plain loops.

#include <memory>

#include <gtest/gtest.h>

#include "dkfac/comm/communicator.h"
#include "dkfac/nn/kfac_attach.h"
#include "dkfac/nn/model.h"
#include "dkfac/optim/optimizer.h"

#include "nn/nn_support.h"
#include "support/fisher.h"
#include "support/natural_gradient.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;
using fisher::Matrix;
using fisher::Vector;

constexpr std::int64_t kSequences = 5, kTokens = 4, kTokenWidth = 3, kTokenHidden = 6,
                       kTokenOut = 2;
constexpr double kTokenRate = 1.0 / 64;

/// One hidden vector per position, and one answer per sample.
std::unique_ptr<Model> net_over_positions(Context& ctx) {
  auto net = std::make_unique<Sequential>();
  net->add<Linear>("each", kTokenWidth, kTokenHidden)
      .add<Relu>("relu")
      .add<Flatten>("flatten")
      .add<Linear>("all", kTokens * kTokenHidden, kTokenOut);
  return std::make_unique<Model>(ctx, "positions", std::move(net), Shape{kTokens, kTokenWidth},
                                 DType::f64, 3);
}

/// Keeps the arguments of the first layer's observer calls.
class FirstLayer final : public LayerObserver {
 public:
  FirstLayer(Context& ctx, LayerObserver& inner) : ctx_(ctx), inner_(inner) {}
  void on_forward(Layer& layer, ConstTensorView input) override {
    if (layer.name() == "each") x = values(ctx_, input);
    inner_.on_forward(layer, input);
  }
  void on_backward(Layer& layer, ConstTensorView grad) override {
    if (layer.name() == "each") dy = values(ctx_, grad);
    inner_.on_backward(layer, grad);
  }
  void on_normalization(Layer&, ConstTensorView, ConstTensorView, ConstTensorView,
                        ConstTensorView) override {}
  void on_gradients(Layer& layer) override { inner_.on_gradients(layer); }
  Vector x, dy;

 private:
  Context& ctx_;
  LayerObserver& inner_;
};

struct PositionStep {
  Vector a = {}, g = {};    ///< Averages of the first layer.
  Vector naive_a, naive_g;  ///< By their definition.
  Vector moved;             ///< All parameters after the step.
};

PositionStep position_step(kfac::WeightSharing sharing, bool low_rank) {
  Context ctx;
  const auto model = net_over_positions(ctx);
  optim::KfacOptions options{.curvature = natural_gradient()};
  options.curvature.dtype = DType::f64;
  options.curvature.statistics.sharing = sharing;
  options.curvature.statistics.low_rank = low_rank;
  options.curvature.statistics.new_weight = 1;
  options.curvature.damping = 0.05;
  const auto optimizer = optim::make_kfac(comm::make_self(), options);
  OptimizerAttachment attachment(*model, *optimizer, {.max_samples = kSequences});
  optimizer->prepare();
  FirstLayer first(ctx, attachment);
  model->set_observer(&first);
  const Tensor x = random_tensor(ctx, Shape{kSequences, kTokens, kTokenWidth}, DType::f64, 1);
  model->forward(ctx, x, Mode::train);  // The backward pass reads x.
  model->backward(ctx, random_tensor(ctx, Shape{kSequences, kTokenOut}, DType::f64, 2));
  EXPECT_TRUE(optimizer->step({.lr = kTokenRate, .flags = {}}, Stream::cpu()).updated);

  // Rows by sample and position; a mean loss, whose gradients are those of a sample over N.
  constexpr auto n = static_cast<double>(kSequences), t = static_cast<double>(kTokens);
  const bool reduce = sharing == kfac::WeightSharing::reduce;
  const std::int64_t rows = reduce ? kSequences : kSequences * kTokens;
  Matrix a(rows, kTokenWidth + 1), g(rows, kTokenHidden);
  for (std::int64_t i = 0; i < kSequences * kTokens; ++i) {
    const std::int64_t row = reduce ? i / kTokens : i;
    const double share = reduce ? 1 / t : 1;
    for (std::int64_t j = 0; j < kTokenWidth; ++j)
      a(row, j) += share * first.x.at(static_cast<std::size_t>(i * kTokenWidth + j));
    a(row, kTokenWidth) += share;
    for (std::int64_t j = 0; j < kTokenHidden; ++j)
      g(row, j) += n * first.dy.at(static_cast<std::size_t>(i * kTokenHidden + j));
  }
  PositionStep out{.naive_a = fisher::second_moment(a, static_cast<double>(rows)).v,
                   .naive_g = fisher::second_moment(g, n).v,
                   .moved = values(ctx, model->parameters())};
  const kfac::LayerFactors factors = optimizer->read_factors(LayerId{0});
  if (factors.a.average.is_set()) out.a = values(ctx, factors.a.average);
  if (factors.g.average.is_set()) out.g = values(ctx, factors.g.average);
  return out;
}

TEST(PositionsOfALinear, AreRowsOfItsFactorsOrOnePerSample) {
  const PositionStep expand = position_step(kfac::WeightSharing::expand, false);
  const PositionStep reduce = position_step(kfac::WeightSharing::reduce, false);
  // n = 20 terms of at most 1, and of dy^2 * 25 below 10: c = 10.
  const double tolerance = 10 * 20 * eps<double>;
  for (const PositionStep* step : {&expand, &reduce}) {
    EXPECT_TRUE(near(step->a, step->naive_a, tolerance));
    EXPECT_TRUE(near(step->g, step->naive_g, 10 * tolerance));
  }
  // Control: the two are not the same.
  EXPECT_FALSE(near(expand.a, reduce.naive_a, 1e-3));
  EXPECT_FALSE(near(expand.g, reduce.naive_g, 1e-3));
  EXPECT_FALSE(near(expand.moved, reduce.moved, 1e-6));
}

TEST(PositionsOfALinear, HaveRoomWhereAFactorIsKeptAsRows) {
  for (const auto sharing : {kfac::WeightSharing::expand, kfac::WeightSharing::reduce}) {
    const PositionStep rows = position_step(sharing, true),
                       triangles = position_step(sharing, false);
    // The last layer has 25 inputs, 5 rows. Up to 25 unknowns, conditioned like |F| / lambda, 1e2.
    EXPECT_TRUE(near(rows.moved, triangles.moved, 25 * 1e2 * eps<double>));
  }
}

TEST(PositionsOfALinear, AreCountedBySpecificationAndByOperations) {
  Context ctx;
  const auto model = net_over_positions(ctx);
  EXPECT_EQ(forward_flops(*model),
            2 * (kTokens * kTokenWidth * kTokenHidden + kTokens * kTokenHidden * kTokenOut));
  optim::KfacOptions options{.curvature = natural_gradient()};
  const auto optimizer = optim::make_kfac(comm::make_self(), options);
  const OptimizerAttachment attachment(*model, *optimizer, {.max_samples = 7});
  const auto each = std::get<LinearSpec>(attachment.specs()[0]);
  EXPECT_EQ(each.max_rows, 7 * kTokens);
  EXPECT_EQ(each.sample_rows, kTokens);
  EXPECT_EQ(std::get<LinearSpec>(attachment.specs()[1]).sample_rows, 1);
}

}  // namespace
}  // namespace dkfac::nn
