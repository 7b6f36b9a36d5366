#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "dkfac/nn/model.h"

#include "nn/nn_support.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

ModelOptions resnet9(std::string name, ModelSwitches switches = {}) {
  return {.name = std::move(name),
          .input = Shape{16, 16, 3},
          .dtype = DType::f64,
          .width = 4,
          .switches = switches};
}

bool has(Model& model, const std::string& name) {
  const auto tensors = model.named_tensors();
  return std::any_of(tensors.begin(), tensors.end(),
                     [&](const NamedTensor& t) { return t.name == name; });
}

std::vector<std::string> leaves(const Model& model) {
  std::vector<std::string> names;
  model.trace([&](const Layer& layer, const Shape&) { names.push_back(layer.name()); });
  return names;
}

bool comes_before(const std::vector<std::string>& names, const char* first, const char* second) {
  return std::find(names.begin(), names.end(), first) <
         std::find(names.begin(), names.end(), second);
}

std::string description_of(const Model& model, const std::string& layer_name) {
  std::string text;
  model.trace([&](const Layer& layer, const Shape&) {
    if (layer.name() == layer_name) text = layer.describe();
  });
  return text;
}

TEST(ResNet9, HasTheStructureOfItsRecipe) {
  Context ctx;
  const auto model = make_model(ctx, resnet9("resnet9"));
  EXPECT_EQ(leaves(*model), (std::vector<std::string>{"whiten",
                                                      "prep.conv",
                                                      "prep.norm",
                                                      "layer1.conv",
                                                      "layer1.pool",
                                                      "layer1.norm",
                                                      "layer1.residual.res1.conv",
                                                      "layer1.residual.res1.norm",
                                                      "layer1.residual.res2.conv",
                                                      "layer1.residual.res2.norm",
                                                      "layer2.conv",
                                                      "layer2.pool",
                                                      "layer2.norm",
                                                      "layer3.conv",
                                                      "layer3.pool",
                                                      "layer3.norm",
                                                      "layer3.residual.res1.conv",
                                                      "layer3.residual.res1.norm",
                                                      "layer3.residual.res2.conv",
                                                      "layer3.residual.res2.norm",
                                                      "pool",
                                                      "fc",
                                                      "scale"}));
  EXPECT_FALSE(model->tensor("whiten.weight").trained);
  EXPECT_EQ(model->tensor("whiten.weight").view.shape(), (Shape{27, 3, 3, 3}));
  EXPECT_EQ(model->tensor("prep.conv.weight").view.shape(), (Shape{4, 1, 1, 27}));
  EXPECT_FALSE(model->tensor("layer1.norm.weight").trained);
  EXPECT_TRUE(model->tensor("layer1.norm.bias").trained);
  EXPECT_FALSE(has(*model, "fc.bias"));
  EXPECT_TRUE(contains(description_of(*model, "layer2.norm"), "CELU 0.3"));
}

TEST(ResNet9, ThePlainOneHasTheStructureOfTheBaseline) {
  Context ctx;
  const auto model = make_model(ctx, resnet9("resnet9-plain"));
  EXPECT_FALSE(has(*model, "whiten.weight"));
  EXPECT_EQ(model->tensor("prep.conv.weight").view.shape(), (Shape{4, 3, 3, 3}));
  EXPECT_TRUE(model->tensor("layer1.norm.weight").trained);
  EXPECT_TRUE(comes_before(leaves(*model), "layer1.norm", "layer1.pool"));
  EXPECT_TRUE(contains(description_of(*model, "layer2.norm"), "ReLU"));
}

TEST(ResNet9, EachSwitchChangesWhatItSays) {
  Context ctx;
  const auto plain = [&](ModelSwitches s) { return make_model(ctx, resnet9("resnet9-plain", s)); };
  EXPECT_TRUE(has(*plain({.whitening = true}), "whiten.weight"));
  EXPECT_FALSE(has(*make_model(ctx, resnet9("resnet9", {.whitening = false})), "whiten.weight"));
  EXPECT_TRUE(comes_before(leaves(*plain({.pool_order = PoolOrder::pool_norm_activation})),
                           "layer1.pool", "layer1.norm"));
  EXPECT_FALSE(plain({.frozen_bn_scale = true})->tensor("layer3.norm.weight").trained);
  EXPECT_TRUE(contains(description_of(*plain({.celu_alpha = 0.075}), "layer2.norm"), "CELU 0.075"));
  const Tensor x = random_tensor(ctx, Shape{4, 16, 16, 3}, DType::f64, 1);
  const auto base = plain({}), scaled = plain({.logit_scale = 0.5});
  auto logits = values(ctx, base->forward(ctx, x, Mode::train));
  for (double& v : logits) v *= 4;  // 0.5 over 1/8: exact
  EXPECT_EQ(values(ctx, scaled->forward(ctx, x, Mode::train)), logits);
}

double mean_square(const std::vector<double>& x) {
  return std::inner_product(x.begin(), x.end(), x.begin(), 0.0) / static_cast<double>(x.size());
}

TEST(WeightInit, UniformStaysWithinItsBoundAndFillsIt) {
  Context ctx;
  const auto model = make_model(ctx, resnet9("resnet9"));
  const auto weights = values(ctx, model->tensor("layer3.residual.res1.conv.weight").view);
  const double bound = 1 / std::sqrt(9.0 * 32);
  const auto [low, high] = std::minmax_element(weights.begin(), weights.end());
  EXPECT_GE(*low, -bound);
  EXPECT_LE(*high, bound);
  // The mean square of n uniform values spreads by bound^2 / sqrt(11 n); five of those.
  const double spread = bound * bound / std::sqrt(11.0 * static_cast<double>(weights.size()));
  EXPECT_NEAR(mean_square(weights), bound * bound / 3, 5 * spread);
}

TEST(WeightInit, CanBeChosenForEveryModel) {
  Context ctx;
  ModelOptions options = resnet9("resnet9");
  options.init = WeightInit::he_normal;
  const auto he = make_model(ctx, options);
  const auto weights = values(ctx, he->tensor("layer3.residual.res1.conv.weight").view);
  const double variance = 2 / (9.0 * 32);
  // The mean square of n normal values spreads by variance * sqrt(2 / n); five of those.
  const double spread = variance * std::sqrt(2.0 / static_cast<double>(weights.size()));
  EXPECT_NEAR(mean_square(weights), variance, 5 * spread);
  options = {.name = "resnet20", .input = Shape{8, 8, 3}, .width = 4, .init = WeightInit::uniform};
  const auto uniform = make_model(ctx, options);
  const auto stem = values(ctx, uniform->tensor("conv1.weight").view);
  EXPECT_LE(*std::max_element(stem.begin(), stem.end()), 1 / std::sqrt(27.0));
}

TEST(WeightInit, TheClassifierCanHaveItsOwn) {
  Context ctx;
  ModelOptions options{.name = "resnet18", .input = Shape{8, 8, 3}, .width = 16};
  const auto before = make_model(ctx, options);
  options.classifier_stddev = 0.01;
  const auto after = make_model(ctx, options);
  const auto weights = values(ctx, after->tensor("fc.weight").view);
  const double spread = 1e-4 * std::sqrt(2.0 / static_cast<double>(weights.size()));
  EXPECT_NEAR(mean_square(weights), 1e-4, 5 * spread);
  EXPECT_EQ(values(ctx, after->tensor("layer4.1.conv2.weight").view),
            values(ctx, before->tensor("layer4.1.conv2.weight").view));
}

TEST(ZeroGamma, StartsEveryResidualBranchOfAResNetAtZero) {
  Context ctx;
  for (const auto& [name, last, blocks] :
       {std::tuple{"resnet18", ".bn2.weight", 8}, std::tuple{"resnet50", ".bn3.weight", 16},
        std::tuple{"resnet50-d", ".bn3.weight", 16}, std::tuple{"resnet20", ".bn2.weight", 9}}) {
    const auto model =
        make_model(ctx, {.name = name, .input = Shape{32, 32, 3}, .width = 4, .zero_gamma = true});
    int zeros = 0;
    for (const NamedTensor& t : model->named_tensors()) {
      if (!t.trained || t.view.ndim() != 1 || !t.name.ends_with(".weight")) continue;
      const bool is_last = t.name.ends_with(last);
      for (const double v : values(ctx, t.view)) EXPECT_EQ(v, is_last ? 0.0 : 1.0) << t.name;
      zeros += is_last;
    }
    EXPECT_EQ(zeros, blocks) << name;
  }
}

TEST(NormOptions, ReachEveryBatchNorm) {
  Context ctx;
  for (const char* name : {"resnet20", "resnet50", "resnet9", "lenet-bn"}) {
    ModelOptions options{.name = name,
                         .input = Shape{32, 32, 3},
                         .zero_gamma = std::string(name) == "resnet20",
                         .norm_epsilon = 2e-5,
                         .norm_momentum = 0.3};
    if (std::string(name) != "lenet-bn") options.width = 4;
    if (std::string(name) != "resnet9") options.norm_scale_stddev = 0.05;  // Its scales are fixed.
    const auto model = make_model(ctx, options);
    int norms = 0;
    model->visit([&](Layer& layer) {
      const auto* norm = dynamic_cast<const BatchNorm2d*>(&layer);
      if (norm == nullptr) return;
      ++norms;
      EXPECT_EQ(norm->options().epsilon, 2e-5);
      EXPECT_EQ(norm->options().momentum, 0.3);
      const bool last = options.zero_gamma && layer.name().ends_with("bn2");
      EXPECT_EQ(norm->options().scale_stddev, last ? 0 : options.norm_scale_stddev);
    });
    EXPECT_GT(norms, 0);
  }
  EXPECT_THROW((void)make_model(ctx, {.name = "mlp", .norm_epsilon = 1e-3}), InvalidArgument);
}

TEST(Dense, NetworksHaveTheirWidthsActivationAndStart) {
  Context ctx;
  const auto model = make_model(
      ctx, {.name = "autoencoder", .input = Shape{4, 3, 1}, .dtype = DType::f64, .widths = {8, 2}});
  EXPECT_EQ(leaves(*model),
            (std::vector<std::string>{"flatten", "fc1", "tanh1", "fc2", "fc3", "tanh3", "fc4"}));
  EXPECT_EQ(model->outputs(), 12);
  EXPECT_EQ(model->tensor("fc2.weight").view.shape(), (Shape{2, 8}));
  // The largest of 96 numbers is near the bound of glorot; variance 2 / fan_in would be above it.
  const auto first = values(ctx, model->tensor("fc1.weight").view);
  const double bound = std::sqrt(6.0 / (12 + 8)),
               largest = std::abs(*std::max_element(first.begin(), first.end()));
  EXPECT_LE(largest, bound);
  EXPECT_GE(largest, 0.9 * bound);
  const auto mlp = make_model(
      ctx,
      {.name = "mlp", .input = Shape{4, 3, 1}, .widths = {5}, .activation = DenseActivation::gelu});
  EXPECT_EQ(leaves(*mlp), (std::vector<std::string>{"flatten", "fc1", "gelu1", "fc2"}));
  EXPECT_THROW((void)make_model(ctx, {.name = "mlp", .widths = {0}}), InvalidArgument);
  EXPECT_THROW((void)make_model(ctx, {.name = "lenet-bn", .widths = {5}}), InvalidArgument);
}

TEST(NamedTensors, CoverTheArenasOnceInOrder) {
  Context ctx;
  const auto model = make_model(ctx, resnet9("resnet9"));
  const double* parameter = model->parameters().data<double>();
  const double* buffer = model->buffers().data<double>();
  for (const NamedTensor& t : model->named_tensors()) {
    const double*& next = t.trained ? parameter : buffer;
    EXPECT_EQ(t.view.data<double>(), next) << t.name;
    next += t.view.numel();
  }
  EXPECT_EQ(parameter, model->parameters().data<double>() + model->parameter_count());
  EXPECT_EQ(buffer, model->buffers().data<double>() + model->buffers().numel());
}

TEST(NamedTensors, AMistypedNameIsAnsweredWithTheLayersOwn) {
  Context ctx;
  const auto model = make_model(ctx, resnet9("resnet9"));
  const std::string message = message_of([&] { (void)model->tensor("layer1.norm.running_std"); });
  EXPECT_TRUE(contains(message, "'layer1.norm.running_std'"));
  EXPECT_TRUE(contains(message, "layer1.norm.running_var"));
  EXPECT_FALSE(contains(message, "layer2"));
  EXPECT_TRUE(contains(message_of([&] { (void)model->tensor("nonsense"); }), "whiten.weight"));
}

TEST(Summary, ItsColumnsStandBelowEachOther) {
  Context ctx;
  const auto model = make_model(ctx, {.name = "resnet50", .input = Shape{32, 32, 3}, .width = 4});
  std::istringstream lines(model->summary());
  std::string head, line;
  std::getline(lines, head);
  EXPECT_TRUE(contains(head, "resnet50: f32, samples [32, 32, 3]"));
  std::set<std::size_t> lengths, shapes;
  int count = 0;
  while (std::getline(lines, line)) {
    lengths.insert(line.size());
    shapes.insert(line.find('['));
    ++count;
  }
  EXPECT_EQ(lengths.size(), 1U);
  EXPECT_EQ(shapes.size(), 1U);
  EXPECT_EQ(count, 2 * 53 + 3);  // convolutions with BatchNorm, two poolings, the classifier
}

}  // namespace
}  // namespace dkfac::nn
