// The Fisher of a LayerNorm over positions against gradients of one sample at a time, and its
// training on several ranks and from a saved state.

#include <cmath>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/communicator.h"
#include "dkfac/comm/in_process.h"
#include "dkfac/nn/kfac_attach.h"
#include "dkfac/nn/model.h"
#include "dkfac/optim/optimizer.h"

#include "nn/nn_support.h"
#include "support/natural_gradient.h"
#include "support/saved_state.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;
using Values = std::vector<double>;

constexpr std::int64_t kBatch = 12, kTokens = 3, kWidth = 6, kAnswers = 2;
constexpr int kNorm = 1;  ///< LayerId

/// Features of each token, normalised, and one answer for all of a sample.
std::unique_ptr<Model> token_model(Context& ctx) {
  auto net = std::make_unique<Sequential>();
  net->add<Linear>("embed", 4, kWidth)
      .add<LayerNorm>("norm", kWidth)
      .add<Celu>("celu")
      .add<Flatten>("flatten")
      .add<Linear>("fc", kTokens * kWidth, kAnswers);
  return std::make_unique<Model>(ctx, "tokens", std::move(net), Shape{kTokens, 4}, DType::f64, 3);
}

Tensor tokens(Context& ctx, std::uint64_t step) {
  return random_tensor(ctx, Shape{kBatch, kTokens, 4}, DType::f64, step);
}
/// d loss / d answers of each sample.
Tensor answers(Context& ctx, std::uint64_t step) {
  return random_tensor(ctx, Shape{kBatch, kAnswers}, DType::f64, 100 + step);
}

optim::KfacOptions options_of(kfac::NormFisher fisher, double fraction = 1) {
  optim::KfacOptions options{.curvature = natural_gradient()};
  options.curvature.dtype = DType::f64;
  options.curvature.damping = 1e-2;
  options.curvature.statistics.norm_fisher = fisher;
  options.curvature.statistics.fraction = fraction;
  options.curvature.statistics.low_rank = false;
  return options;
}

/// Samples [first, first + count), with the gradient of their mean loss.
void pass(Context& ctx, Model& model, std::uint64_t step, std::int64_t first, std::int64_t count) {
  const Tensor x = tokens(ctx, step), all = answers(ctx, step);
  Tensor dy = Tensor::empty(ctx, Shape{count, kAnswers}, DType::f64);
  ops::copy(ctx, all.view().slice(0, first, count), dy);
  for (std::int64_t i = 0; i < dy.numel(); ++i)
    dy.view().data<double>()[i] /= static_cast<double>(count);
  const Tensor part = cast_to(ctx, x.view().slice(0, first, count), DType::f64);
  model.forward(ctx, part, Mode::train);
  model.backward(ctx, dy);
}

/// Rows gamma gamma, gamma beta, beta beta: one sample after the other, each by a pass of its own.
Values fisher_by_samples(std::int64_t count) {
  Context ctx;
  const auto model = token_model(ctx);
  Values out(3 * kWidth);
  for (std::int64_t i = 0; i < count; ++i) {
    pass(ctx, *model, 1, i, 1);
    Layer* norm = nullptr;
    model->visit([&](Layer& layer) {
      if (layer.name() == "norm") norm = &layer;
    });
    const Values gamma = values(ctx, norm->parameters()[0].grad);
    const Values beta = values(ctx, norm->parameters()[1].grad);
    for (std::size_t c = 0; c < kWidth; ++c) {
      out[c] += gamma[c] * gamma[c] / static_cast<double>(count);
      out[kWidth + c] += gamma[c] * beta[c] / static_cast<double>(count);
      out[2 * kWidth + c] += beta[c] * beta[c] / static_cast<double>(count);
    }
  }
  return out;
}

Values fisher_of_step(const optim::KfacOptions& options) {
  Context ctx;
  const auto model = token_model(ctx);
  const auto optimizer = optim::make_kfac(comm::make_self(), options);
  OptimizerAttachment attachment(*model, *optimizer);
  optimizer->prepare();
  pass(ctx, *model, 1, 0, kBatch);
  EXPECT_TRUE(optimizer->step({.lr = 0.01, .flags = {}}, Stream::cpu()).updated);
  return values(ctx, optimizer->read_factors(LayerId{kNorm}).norm);
}

TEST(LayerNormCurvature, IsThatOfTheGradientsOfSingleSamples) {
  const Values expected = fisher_by_samples(kBatch);
  // n = 12 samples of 3 positions, gradients below 10: c = 1e2.
  constexpr double kTolerance = 1e2 * 36 * eps<double>;
  EXPECT_TRUE(near(fisher_of_step(options_of(kfac::NormFisher::unit_wise)), expected, kTolerance));
  Values diagonal(expected.begin(), expected.begin() + kWidth);
  diagonal.insert(diagonal.end(), expected.end() - kWidth, expected.end());
  EXPECT_TRUE(near(fisher_of_step(options_of(kfac::NormFisher::diagonal)), diagonal, kTolerance));
  // The first samples alone, with the statistics of their rows.
  const Values part = fisher_of_step(options_of(kfac::NormFisher::unit_wise, 0.5));
  EXPECT_TRUE(near(part, fisher_by_samples(kBatch / 2), kTolerance));
  // Control: half the samples give another matrix.
  EXPECT_FALSE(near(part, expected, 1e-3));
}

TEST(LayerNormCurvature, IsRegisteredAsOneOfRows) {
  Context ctx;
  const auto model = token_model(ctx);
  const auto optimizer =
      optim::make_kfac(comm::make_self(), options_of(kfac::NormFisher::unit_wise));
  const OptimizerAttachment attachment(*model, *optimizer);
  EXPECT_EQ(dkfac::describe(attachment.specs().at(kNorm)), "layer norm 6 nhwc");
  EXPECT_EQ(attachment.names().at(kNorm), "norm");
}

/// Parameters after each of the steps [first, last), from those given, if any.
struct Course {
  std::vector<Values> parameters;
  SavedState state;
};
Course train(const std::shared_ptr<comm::Communicator>& comm, int first, int last,
             const Course* from = nullptr) {
  Context ctx;
  const auto model = token_model(ctx);
  const auto optimizer = optim::make_kfac(comm, options_of(kfac::NormFisher::unit_wise));
  OptimizerAttachment attachment(*model, *optimizer);
  attachment.set_scale({.global_batch = kBatch});
  if (from != nullptr) {
    const Values& saved = from->parameters.back();
    ops::copy(ctx, view_of(saved.data(), model->parameters().shape()), model->parameters());
  }
  optimizer->prepare();
  if (from != nullptr) {
    const std::vector<SavedState> states{from->state};
    Loader loader(states, comm->rank());
    optimizer->visit_state(loader);
  }
  Course out;
  const std::int64_t share = kBatch / comm->size();
  for (int step = first; step < last; ++step) {
    pass(ctx, *model, static_cast<std::uint64_t>(step), comm->rank() * share, share);
    EXPECT_TRUE(optimizer->step({.lr = 0.05, .flags = {}}, Stream::cpu()).updated);
    out.parameters.push_back(values(ctx, model->parameters()));
  }
  Saver saver;
  optimizer->visit_state(saver);
  out.state = saver.state;
  return out;
}

TEST(LayerNormCurvature, GivesTheSameWeightsOnEveryNumberOfRanks) {
  const Course alone = train(comm::make_self(), 0, 8);
  EXPECT_FALSE(near(alone.parameters.front(), alone.parameters.back(), 1e-3));
  for (const int ranks : {1, 2, 3}) {
    comm::run_ranks(ranks, [&](const std::shared_ptr<comm::Communicator>& comm) {
      const Course course = train(comm, 0, 8);
      // Sums in another order, 8 steps of inverses conditioned like 1e2.
      EXPECT_TRUE(near(course.parameters.back(), alone.parameters.back(), 1e-10)) << ranks;
    });
  }
}

TEST(LayerNormCurvature, ContinuesFromASavedState) {
  const Course whole = train(comm::make_self(), 0, 6), half = train(comm::make_self(), 0, 3);
  const Course rest = train(comm::make_self(), 3, 6, &half);
  EXPECT_EQ(rest.parameters.back(), whole.parameters.back());
  // Control: without its averages it takes another course.
  Course forgotten = half;
  for (auto& [name, value] : forgotten.state)
    if (name.find("fisher") != std::string::npos && value.dtype == DType::f64)
      for (char& byte : value.bytes) byte = 0;
  EXPECT_NE(train(comm::make_self(), 3, 6, &forgotten).parameters.back(), whole.parameters.back());
}

}  // namespace
}  // namespace dkfac::nn
