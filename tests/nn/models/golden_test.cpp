#include "nn/golden.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "dkfac/comm/communicator.h"
#include "dkfac/nn/kfac_attach.h"
#include "dkfac/nn/loss.h"

#include "support/each_backend.h"

/// Compares with the results of PyTorch in double precision: tests/golden/make_golden.py.
namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

constexpr double kSmoothing = 0.1;

const GoldenFile& golden() {
  static const GoldenFile file(DKFAC_GOLDEN_DIR "/small_cnn.txt");
  return file;
}

class Golden : public EachBackend {
 protected:
  /// One step: eight layers of sums of up to 144 terms, magnified by BatchNorms over 54 values,
  /// c = 4 in f64; in f32 the bar of E15 (docs/project/proof.md), which is 84 eps.
  [[nodiscard]] double tolerance() const {
    return dtype() == DType::f64 ? 4 * 8 * 144 * epsilon() : 1e-5;
  }

  double forward_backward(Model& model) {
    const Tensor x = golden_images(ctx, golden(), 0, dtype());
    const ConstTensorView logits = model.forward(ctx, x, Mode::train);
    logits_ = values(ctx, logits);
    Tensor grad = Tensor::empty(ctx, logits.shape(), dtype());
    const double share = 1.0 / kGoldenSamples;
    const LossSum sum =
        softmax_cross_entropy(ctx, logits, golden_labels(golden(), 0), kSmoothing, share, grad);
    model.backward(ctx, grad);
    return sum.loss * share;
  }

  std::vector<double> logits_;
};

/// Gradients of one layer, one tensor behind the other: what should be zero, such as that of a bias
/// in front of a BatchNorm, is measured on the layer's other gradients.
std::vector<double> gradients_of(Context& ctx, Layer& layer) {
  std::vector<double> all;
  for (const Parameter& p : layer.parameters()) {
    const auto g = values(ctx, p.grad);
    all.insert(all.end(), g.begin(), g.end());
  }
  return all;
}

std::vector<double> golden_gradients_of(const Layer& layer) {
  std::vector<double> all;
  for (const Parameter& p : layer.parameters()) {
    const auto& g = golden().at("grad." + layer.name() + "." + p.name);
    all.insert(all.end(), g.begin(), g.end());
  }
  return all;
}

double worst_gradient(Context& ctx, Model& model) {
  double worst = 0;
  model.visit([&](Layer& layer) {
    if (layer.parameters().empty()) return;
    worst = std::max(worst, relative_error(gradients_of(ctx, layer), golden_gradients_of(layer)));
  });
  return worst;
}

TEST_P(Golden, ForwardAndLossAreThoseOfPyTorch) {
  const auto model = golden_model(ctx, golden(), dtype());
  EXPECT_EQ(model->parameter_count(), 216 + 8 + 16 + 864 + 24 + 1296 + 24 + 96 + 24 + 444 + 65);
  const double loss = forward_backward(*model);
  EXPECT_TRUE(near(logits_, golden().at("logits"), tolerance()));
  EXPECT_NEAR(loss, golden().at("loss").front(), tolerance() * loss);
}

TEST_P(Golden, EveryGradientIsThatOfPyTorch) {
  const auto model = golden_model(ctx, golden(), dtype());
  forward_backward(*model);
  EXPECT_LE(worst_gradient(ctx, *model), tolerance());
}

TEST_P(Golden, RunningStatisticsAndEvaluationAreThoseOfPyTorch) {
  const auto model = golden_model(ctx, golden(), dtype());
  forward_backward(*model);
  for (const NamedTensor& t : model->named_tensors()) {
    if (t.trained) continue;
    EXPECT_TRUE(near(values(ctx, t.view), golden().at("after." + t.name), tolerance())) << t.name;
  }
  const Tensor x = golden_images(ctx, golden(), 1, dtype());
  EXPECT_TRUE(near(values(ctx, model->forward(ctx, x, Mode::eval)), golden().at("eval_logits"),
                   tolerance()));
}

TEST_P(Golden, TheComparisonNoticesAWeightThatIsOff) {
  for (const char* name : {"conv1.weight", "block.bn2.bias", "block.downsample.0.weight",
                           "conv2.weight", "fc.weight"}) {
    const auto model = golden_model(ctx, golden(), dtype());
    const TensorView weight = model->tensor(name).view;
    const TensorView element = weight.flat().slice(0, weight.numel() / 2, 1);
    ops::axpby(ctx, 1e3 * tolerance(), Tensor::copy_of(ctx, element), 1.0, element);
    const double loss = forward_backward(*model);
    EXPECT_GT(relative_error(logits_, golden().at("logits")), tolerance()) << name;
    EXPECT_TRUE(std::isfinite(loss));
    EXPECT_GT(worst_gradient(ctx, *model), tolerance()) << name;
  }
}

struct Trained {
  std::vector<double> losses, classifier, stem;
};

/// The generator's ten steps, with the optimizers as programs use them.
Trained train(Context& ctx, Model& model, optim::Optimizer& optimizer) {
  OptimizerAttachment attachment(model, optimizer);
  attachment.set_scale({.global_batch = kGoldenSamples});
  optimizer.prepare();
  Trained result;
  Tensor grad = Tensor::empty(ctx, Shape{kGoldenSamples, kGoldenClasses}, model.dtype());
  const double share = 1.0 / kGoldenSamples;
  for (int step = 0; step < kGoldenSteps; ++step) {
    const Tensor x = golden_images(ctx, golden(), step % 2, model.dtype());
    const ConstTensorView logits = model.forward(ctx, x, Mode::train);
    const LossSum sum = softmax_cross_entropy(ctx, logits, golden_labels(golden(), step % 2),
                                              kSmoothing, share, grad);
    model.backward(ctx, grad);
    const double lr = step < 5 ? 0.1 : 0.025;
    EXPECT_TRUE(optimizer.step({.lr = lr, .flags = {}}, Stream::cpu()).updated);
    result.losses.push_back(sum.loss * share);
  }
  result.classifier = values(ctx, model.tensor("fc.weight").view);
  result.stem = values(ctx, model.tensor("conv1.weight").view);
  return result;
}

/// Ten steps magnify the rounding of one: c = 20 in f64. In f32 the bar of one step has room
/// enough.
void expect_same_training(const Trained& actual, const std::string& name, double tolerance) {
  tolerance = std::min(20 * tolerance, 1e-5);
  EXPECT_TRUE(near(actual.losses, golden().at(name + ".losses"), tolerance));
  EXPECT_TRUE(near(actual.classifier, golden().at(name + ".fc.weight"), tolerance));
  EXPECT_TRUE(near(actual.stem, golden().at(name + ".conv1.weight"), tolerance));
}

optim::SgdOptions sgd_options() {
  optim::SgdOptions options;
  options.nesterov = true;
  options.weight_decay = 5e-3;
  return options;
}

TEST_P(Golden, TenStepsOfNesterovMomentumAreThoseOfPyTorch) {
  const auto model = golden_model(ctx, golden(), dtype());
  const auto sgd = optim::make_sgd(comm::make_self(), sgd_options());
  expect_same_training(train(ctx, *model, *sgd), "sgd", tolerance());
}

TEST_P(Golden, TenStepsOfLarsAreThoseOfItsFormula) {
  const auto model = golden_model(ctx, golden(), dtype());
  optim::LarsOptions options;
  options.weight_decay = 1e-2;
  options.eta = 0.4;
  const auto lars = optim::make_lars(comm::make_self(), options);
  expect_same_training(train(ctx, *model, *lars), "lars", tolerance());
}

TEST_P(Golden, TheComparisonNoticesAnOtherMomentum) {
  const auto model = golden_model(ctx, golden(), dtype());
  optim::SgdOptions options = sgd_options();
  options.nesterov = false;
  const auto sgd = optim::make_sgd(comm::make_self(), options);
  const Trained other = train(ctx, *model, *sgd);
  EXPECT_GT(relative_error(other.losses, golden().at("sgd.losses")), 20 * tolerance());
}

DKFAC_EACH_BACKEND(Golden);

}  // namespace
}  // namespace dkfac::nn
