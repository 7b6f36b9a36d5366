// Changes of ResNet-9 over every network: what they refuse, keep and change, in values, gradients
// and the blocks of K-FAC.

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "dkfac/comm/communicator.h"
#include "dkfac/nn/kfac_attach.h"
#include "dkfac/nn/whitening.h"

#include "nn/model_gradients.h"
#include "nn/nn_support.h"
#include "support/natural_gradient.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

constexpr PoolOrder kActivationFirst = PoolOrder::norm_activation_pool;
constexpr PoolOrder kPoolBetween = PoolOrder::norm_pool_activation;
constexpr PoolOrder kPoolFirst = PoolOrder::pool_norm_activation;

/// Networks without max pooling behind an activation.
const std::set<std::string> kUnpooled{"mlp", "autoencoder", "resnet18", "resnet20", "resnet32"};

/// Networks of Linear layers alone.
bool is_dense(const std::string& name) { return name == "mlp" || name == "autoencoder"; }

ModelOptions small(const std::string& name, const ModelSwitches& switches = {}) {
  ModelOptions options{.name = name, .input = {32, 32, 2}, .classes = 4, .dtype = DType::f64};
  if (!is_dense(name) && name != "lenet-bn") options.width = 2;
  options.switches = switches;
  return options;
}

std::string refusal_of(const ModelOptions& options) {
  return message_of([&] { (void)outline_model(options); });
}

std::vector<LayerSpec> specs_of(const std::string& name, const ModelSwitches& switches) {
  return layer_specs(small(name, switches), 6);
}

template <class Spec>
std::int64_t count_of(const std::vector<LayerSpec>& specs) {
  return std::count_if(specs.begin(), specs.end(),
                       [](const LayerSpec& s) { return std::holds_alternative<Spec>(s); });
}

TEST(Switches, AreRefusedWhereANetworkLacksWhatTheyChange) {
  for (const std::string& name : model_names()) {
    const bool dense = is_dense(name);
    EXPECT_EQ(contains(refusal_of(small(name, {.whitening = true})), "no convolution"), dense);
    EXPECT_EQ(contains(refusal_of(small(name, {.frozen_bn_scale = true})), "no BatchNorm"), dense);
    for (const PoolOrder order : {kActivationFirst, kPoolBetween, kPoolFirst})
      EXPECT_EQ(contains(refusal_of(small(name, {.pool_order = order})), "no max pooling"),
                kUnpooled.contains(name));
    EXPECT_EQ(refusal_of(small(name, {.celu_alpha = 0.3, .logit_scale = 0.5})), "") << name;
  }
  ModelOptions zero = small("resnet20", {.frozen_bn_scale = true});
  zero.zero_gamma = true;
  EXPECT_TRUE(contains(refusal_of(zero), "residual branch"));
  ModelOptions spread = small("resnet20", {.frozen_bn_scale = true});
  spread.norm_scale_stddev = 0.1;
  EXPECT_TRUE(contains(refusal_of(spread), "norm_scale_stddev"));
  ModelOptions none = small("resnet20");
  none.norm_scale = 0;
  EXPECT_TRUE(contains(refusal_of(none), "norm_scale"));
}

TEST(Switches, ChangeTheBlocksOfKfacAsTheyChangeTheLayers) {
  for (const std::string& name : model_names()) {
    if (is_dense(name)) continue;
    SCOPED_TRACE(name);
    const ModelSwitches off{.whitening = false, .frozen_bn_scale = false};
    const std::vector<LayerSpec> plain = specs_of(name, off);
    const auto trained = outline_model(small(name, off))->parameter_count();
    // Whitening: the first block has the rows of the patches, and no layer is added to K-FAC.
    const std::vector<LayerSpec> white = specs_of(name, {.whitening = true});
    ASSERT_EQ(white.size(), plain.size());
    const auto& first = std::get<Conv2dSpec>(plain.front());
    const auto& mixed = std::get<Conv2dSpec>(white.front());
    EXPECT_EQ(mixed.in, first.in * first.window.kernel_h * first.window.kernel_w);
    EXPECT_EQ(mixed.window.kernel_h * mixed.window.stride_h, 1);
    EXPECT_EQ(std::pair(mixed.out, mixed.bias), std::pair(first.out, first.bias));
    EXPECT_EQ(mixed.sample_rows, first.sample_rows);
    EXPECT_EQ(outline_model(small(name, {.whitening = true, .frozen_bn_scale = false}))
                  ->parameter_count(),
              trained);
    // Frozen scales: every BatchNorm keeps its shift alone.
    const std::vector<LayerSpec> frozen = specs_of(name, {.frozen_bn_scale = true});
    std::int64_t channels = 0;
    for (const LayerSpec& spec : frozen) {
      const auto* norm = std::get_if<NormSpec>(&spec);
      if (norm == nullptr) continue;
      EXPECT_FALSE(norm->scale);
      channels += norm->channels;
    }
    EXPECT_GT(channels, 0);
    const auto shifts = outline_model(small(name, {.whitening = false, .frozen_bn_scale = true}));
    EXPECT_EQ(shifts->parameter_count(), trained - channels);
    EXPECT_EQ(count_of<NormSpec>(frozen), count_of<NormSpec>(plain));
    EXPECT_EQ(count_of<Conv2dSpec>(frozen), count_of<Conv2dSpec>(plain));
    EXPECT_EQ(count_of<PlainSpec>(white) + count_of<PlainSpec>(frozen), 0)
        << "layers without curvature";
  }
}

/// What a step of K-FAC reads and makes of a network.
struct Step {
  std::vector<double> logits, gradients, parameters;
};

constexpr std::int64_t kBatch = 6;

Step step_of(Context& ctx, Model& model) {
  optim::KfacOptions options{.curvature = natural_gradient()};
  options.momentum = 0;
  options.curvature.dtype = DType::f64;
  options.curvature.damping = 0.1;
  options.curvature.statistics.norm_fisher = kfac::NormFisher::diagonal;
  const auto kfac = optim::make_kfac(comm::make_self(), options);
  OptimizerAttachment attachment(model, *kfac);
  attachment.set_scale({.global_batch = kBatch});
  kfac->prepare();
  Step out;
  const Tensor x = random_tensor(ctx, {kBatch, 32, 32, 2}, DType::f64, 1);
  out.logits = values(ctx, model.forward(ctx, x, Mode::train));
  const Tensor dy = random_tensor(ctx, {kBatch, 4}, DType::f64, 2, -0.3, 0.3);
  model.backward(ctx, dy);
  out.gradients = values(ctx, model.gradients());
  EXPECT_TRUE(kfac->step({.lr = 0.1, .flags = {}}, Stream::cpu()).updated);
  out.parameters = values(ctx, model.parameters());
  return out;
}

/// Sums of up to 7*7*16 terms, through up to 53 layers, each normalised, then inverses of a
/// condition of about 1e2: c = 1e4 for all of them together.
constexpr double kTolerance = 1e4 * 784 * eps<double>;

TEST(Switches, WhiteningWithFiltersOfSinglePixelsIsTheNetworkWithout) {
  Context ctx(Device::cpu(), {.threads = 1});
  for (const std::string name : {"lenet-bn", "resnet9-plain", "resnet18", "resnet20", "resnet34",
                                 "resnet50-d", "vgg16-bn"}) {
    const auto plain = make_model(ctx, small(name));
    const auto white = make_model(ctx, small(name, {.whitening = true}));
    // The weights [out,h,w,c] of the first convolution are those of [out,1,1,h*w*c] in memory.
    ASSERT_EQ(white->parameter_count(), plain->parameter_count());
    ops::copy(ctx, plain->parameters(), white->parameters());
    const Step there = step_of(ctx, *white);
    const std::int64_t kernel = whitening_kernel(*white), d = 2 * kernel * kernel;
    Tensor filters = Tensor::zeros(ctx, {d, kernel, kernel, 2}, DType::f64);
    for (std::int64_t k = 0; k < d; ++k) filters.data<double>()[k * d + k] = 1;
    ops::copy(ctx, plain->parameters(), white->parameters());
    set_whitening(ctx, *white, filters);
    const Step here = step_of(ctx, *white), without = step_of(ctx, *plain);
    EXPECT_TRUE(near(here.logits, without.logits, kTolerance)) << name;
    EXPECT_TRUE(near(here.gradients, without.gradients, kTolerance)) << name;
    EXPECT_TRUE(near(here.parameters, without.parameters, kTolerance)) << name;
    EXPECT_FALSE(near(there.logits, without.logits, 1e-3)) << name << ", control: random filters";
  }
}

TEST(Switches, PoolingBeforeTheActivationIsPoolingBehindIt) {
  Context ctx(Device::cpu(), {.threads = 1});
  for (const std::string name :
       {"lenet-bn", "resnet9-plain", "resnet34", "resnet50-d", "vgg16-bn"}) {
    for (const double alpha : {0.0, 0.3}) {
      const auto make = [&](PoolOrder order) {
        return make_model(ctx, small(name, {.pool_order = order, .celu_alpha = alpha}));
      };
      const auto first = make(kActivationFirst);
      const auto step = [&](PoolOrder order) {  // Initial weights depend on a layer's position.
        const auto model = make(order);
        ops::copy(ctx, first->parameters(), model->parameters());
        return step_of(ctx, *model);
      };
      const Step behind = step(kActivationFirst), between = step(kPoolBetween);
      const double tolerance = alpha == 0 ? 0 : kTolerance;  // A maximum of ReLUs has no rounding.
      EXPECT_TRUE(near(between.logits, behind.logits, tolerance)) << name << ' ' << alpha;
      EXPECT_TRUE(near(between.gradients, behind.gradients, kTolerance)) << name << ' ' << alpha;
      EXPECT_TRUE(near(between.parameters, behind.parameters, kTolerance)) << name << ' ' << alpha;
      EXPECT_FALSE(near(step(kPoolFirst).logits, behind.logits, 1e-3)) << name << ", control";
    }
  }
}

TEST(Switches, FrozenScalesLeaveEveryOtherUpdateOfKfac) {
  Context ctx(Device::cpu(), {.threads = 1});
  for (const std::string name : {"lenet-bn", "resnet20", "resnet34", "vgg16-bn"}) {
    ModelOptions options = small(name);
    options.norm_scale = 0.25;
    const auto trained = make_model(ctx, options);
    options.switches.frozen_bn_scale = true;
    const auto frozen = make_model(ctx, options);
    const Step all = step_of(ctx, *trained), rest = step_of(ctx, *frozen);
    EXPECT_EQ(rest.logits, all.logits) << name;
    int scales = 0;
    for (const NamedTensor& there : frozen->named_tensors()) {
      const NamedTensor here = trained->tensor(there.name);
      if (here.trained == there.trained) {
        EXPECT_TRUE(near(values(ctx, there.view), values(ctx, here.view), kTolerance))
            << name << ' ' << there.name;
        continue;
      }
      ++scales;
      for (const double v : values(ctx, there.view)) EXPECT_EQ(v, 0.25);
      EXPECT_NE(values(ctx, here.view), values(ctx, there.view)) << "control: trained scales move";
    }
    EXPECT_GT(scales, 0);
  }
}

TEST(Switches, CeluReplacesEveryReluAndTheLogitsHaveTheirFactor) {
  Context ctx(Device::cpu(), {.threads = 1});
  for (const std::string& name : model_names()) {
    const auto outline = outline_model(small(name, {.celu_alpha = 0.3}));
    int activations = 0;
    outline->visit([&](Layer& layer) {
      EXPECT_FALSE(contains(layer.describe(), "ReLU")) << name << ' ' << layer.describe();
      activations += contains(layer.describe(), "CELU 0.3");
    });
    EXPECT_GT(activations, 1) << name;
    const auto usual = make_model(ctx, small(name, {.logit_scale = 1.0}));
    const auto scaled = make_model(ctx, small(name, {.logit_scale = 0.125}));
    const Tensor x = random_tensor(ctx, {4, 32, 32, 2}, DType::f64, 1);
    auto logits = values(ctx, usual->forward(ctx, x, Mode::train));
    for (double& v : logits) v *= 0.125;  // Exact.
    EXPECT_EQ(values(ctx, scaled->forward(ctx, x, Mode::train)), logits) << name;
  }
}

TEST(Switches, AllTogetherHaveTheGradientsOfTheLoss) {
  Context ctx(Device::cpu(), {.threads = 1});
  for (const std::string name :
       {"mlp", "lenet-bn", "resnet20", "resnet34", "resnet50-d", "vgg16-bn"}) {
    ModelSwitches switches{.celu_alpha = 0.3, .logit_scale = 0.5};
    if (name != "mlp") switches.whitening = switches.frozen_bn_scale = true;
    if (!kUnpooled.contains(name)) switches.pool_order = kPoolFirst;
    const auto model = make_model(ctx, small(name, switches));
    const Tensor x = random_tensor(ctx, {kBatch, 32, 32, 2}, DType::f64, 1);
    expect_gradients_match(ctx, *model, x, {0, 1, 2, 3, 3, 1}, 10, 5U);
  }
}

}  // namespace
}  // namespace dkfac::nn
