#include "nn/models/models.h"

#include <cmath>
#include <fstream>
#include <map>

#include <gtest/gtest.h>

#include "dkfac/nn/loss.h"
#include "dkfac/nn/model.h"

#include "nn/model_gradients.h"
#include "nn/nn_support.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

const Shape kCifar{32, 32, 3};

std::unique_ptr<Model> small(Context& ctx, const std::string& name, Shape input = {16, 16, 2}) {
  return make_model(ctx, {.name = name, .input = input, .classes = 4, .width = 4});
}

struct Published {
  const char* name;
  std::int64_t parameters;
  double giga_multiply_adds;  ///< Convolutions and linear layers, per image of 32x32x3.
};

std::string name_of(const ::testing::TestParamInfo<Published>& info) {
  std::string name = info.param.name;
  std::erase(name, '-');
  return name;
}

class PublishedModel : public ::testing::TestWithParam<Published> {};

TEST_P(PublishedModel, HasTheParametersAndTheWorkOfThePaper) {
  Context ctx;
  const auto model = make_model(ctx, {.name = GetParam().name, .input = kCifar});
  EXPECT_EQ(model->parameter_count(), GetParam().parameters);
  EXPECT_NEAR(forward_flops(*model) / 2e9, GetParam().giga_multiply_adds, 5e-5);
}

// He et al. 2016, table 6: 0.27 M and 0.46 M. ResNet-9: its trained weights and 2 x 2240 or 2240
// values of BatchNorm.
INSTANTIATE_TEST_SUITE_P(Cifar, PublishedModel,
                         ::testing::Values(Published{"resnet20", 269722, 0.04055},
                                           Published{"resnet32", 464154, 0.06886},
                                           Published{"resnet18", 11173962, 0.55542},
                                           Published{"resnet9", 6568640 + 2240, 0.38002},
                                           Published{"resnet9-plain", 6568640 + 4480, 0.37926}),
                         name_of);

/// Networks for images of 224 pixels, whose weights need no memory here. Parameters and
/// multiply-adds are those that torchvision's documentation gives.
class PublishedLayers : public ::testing::TestWithParam<Published> {};

TEST_P(PublishedLayers, HaveTheParametersAndTheWorkOfTorchvision) {
  const auto root =
      make_layers({.name = GetParam().name, .input = Shape{224, 224, 3}, .classes = 1000});
  root->set_name("");
  std::int64_t parameters = 0;
  root->visit([&](Layer& layer) {
    for (const Parameter& p : layer.parameters()) parameters += p.shape.numel();
  });
  EXPECT_EQ(parameters, GetParam().parameters);
  const PassPlan plan = plan_passes(*root, Shape{1, 224, 224, 3}, Mode::eval, DType::f32);
  EXPECT_NEAR(plan.flops / 2e9, GetParam().giga_multiply_adds, 6e-3);
}

INSTANTIATE_TEST_SUITE_P(ImageNet, PublishedLayers,
                         ::testing::Values(Published{"resnet34", 21797672, 3.66},
                                           Published{"resnet50", 25557032, 4.09},
                                           Published{"resnet101", 44549160, 7.80},
                                           Published{"resnet152", 60192808, 11.51},
                                           Published{"vgg16-bn", 138365992, 15.47}),
                         name_of);

TEST(Vgg16, HasTheNamesOfTorchvision) {
  Context ctx;
  const auto model = small(ctx, "vgg16-bn", Shape{64, 64, 3});
  EXPECT_EQ(model->tensor("features.0.weight").view.shape(), (Shape{4, 3, 3, 3}));
  EXPECT_EQ(model->tensor("features.0.bias").view.shape(), (Shape{4}));
  EXPECT_EQ(model->tensor("features.41.running_var").view.shape(), (Shape{32}));
  EXPECT_EQ(model->tensor("features.40.weight").view.shape(), (Shape{32, 3, 3, 32}));
  EXPECT_EQ(model->tensor("classifier.0.weight").view.shape(), (Shape{256, 2 * 2 * 32}));
  EXPECT_EQ(model->tensor("classifier.6.weight").view.shape(), (Shape{4, 256}));
  EXPECT_TRUE(contains(message_of([&] { (void)small(ctx, "vgg16-bn", Shape{31, 32, 3}); }), "32"));
}

/// "layer1.0.conv1.weight [64, 3, 3, 64]", in order.
std::vector<std::string> tensors_of(Model& model) {
  std::vector<std::string> lines;
  for (const NamedTensor& t : model.named_tensors()) {
    lines.push_back(detail::concat(t.name, ' ', t.view.shape()));
  }
  return lines;
}

/// Names that tests/golden/make_names.py wrote.
std::vector<std::string> torchvision_tensors(const std::string& model) {
  std::ifstream in(DKFAC_GOLDEN_DIR "/resnet_names.txt");
  EXPECT_TRUE(in.is_open());
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(model + " ")) lines.push_back(line.substr(model.size() + 1));
  }
  return lines;
}

TEST(ResNet18, HasTheTensorsOfTorchvision) {
  Context ctx;
  const auto model = make_model(ctx, {.name = "resnet18", .input = kCifar});
  EXPECT_EQ(model->named_tensors().size(), 102U);  // 62 trained, 20 means, 20 variances
  EXPECT_EQ(tensors_of(*model), torchvision_tensors("resnet18"));
}

TEST(ResNet50, HasThePublishedSizeWorkAndTensors) {
  Context ctx;
  const auto model =
      make_model(ctx, {.name = "resnet50", .input = Shape{224, 224, 3}, .classes = 1000});
  EXPECT_EQ(model->parameter_count(), 25557032);
  EXPECT_NEAR(forward_flops(*model) / 2e9, 4.089, 5e-4);
  EXPECT_EQ(tensors_of(*model), torchvision_tensors("resnet50"));
}

TEST(ResNet50D, HasThreeConvolutionsAsStemAndPooledShortcuts) {
  Context ctx;
  const auto whole =
      make_model(ctx, {.name = "resnet50-d", .input = Shape{224, 224, 3}, .classes = 1000});
  // In place of 7*7*3*64: 3*3*(3*32 + 32*32 + 32*64), and two BatchNorms of 32 channels.
  EXPECT_EQ(whole->parameter_count(), 25557032 - 9408 + 28512 + 128);
  const auto model = small(ctx, "resnet50-d", Shape{32, 32, 3});
  std::map<std::string, Shape> outputs;
  model->trace([&](const Layer& layer, const Shape& shape) { outputs[layer.name()] = shape; });
  EXPECT_EQ(outputs.at("conv1.0"), (Shape{1, 16, 16, 2}));
  EXPECT_EQ(outputs.at("conv1.4"), (Shape{1, 16, 16, 4}));
  EXPECT_EQ(outputs.at("layer2.0.downsample.pool"), (Shape{1, 4, 4, 16}));
  EXPECT_EQ(outputs.at("layer2.0.downsample.0"), (Shape{1, 4, 4, 32}));
  EXPECT_FALSE(outputs.contains("layer1.0.downsample.pool")) << "nothing is halved there";
  EXPECT_TRUE(contains(message_of([&] {
                         (void)small(ctx, "resnet50-d", Shape{48, 32, 3});
                       }),
                       "multiple of 32"));
}

TEST(ResNet50, HasItsStrideInThe3x3Convolution) {
  Context ctx;
  const auto model = small(ctx, "resnet50", Shape{32, 32, 3});
  std::map<std::string, Shape> outputs;
  model->trace([&](const Layer& layer, const Shape& shape) { outputs[layer.name()] = shape; });
  EXPECT_EQ(outputs.at("maxpool"), (Shape{1, 8, 8, 4}));
  EXPECT_EQ(outputs.at("layer2.0.conv1"), (Shape{1, 8, 8, 8}));
  EXPECT_EQ(outputs.at("layer2.0.conv2"), (Shape{1, 4, 4, 8}));
  EXPECT_EQ(outputs.at("layer4.0.downsample.1"), (Shape{1, 1, 1, 128}));
}

/// Logits and, in the second half, gradients for images of this size.
std::vector<double> logits_and_gradients(Context& ctx, Model& model, const Shape& image) {
  const Tensor x = random_tensor(ctx, {2, image[0], image[1], image[2]}, DType::f64, 7);
  const ConstTensorView logits = model.forward(ctx, x, Mode::train);
  std::vector<double> out = values(ctx, logits);
  const Tensor grad = random_tensor(ctx, logits.shape(), DType::f64, 8);
  model.backward(ctx, grad);
  const std::vector<double> gradients = values(ctx, model.gradients());
  out.insert(out.end(), gradients.begin(), gradients.end());
  return out;
}

TEST(Models, OfOtherSizesAreTheSameNetwork) {
  Context ctx;
  for (const char* name : {"resnet20", "resnet18"}) {
    ModelOptions options{
        .name = name, .input = {16, 16, 2}, .classes = 4, .dtype = DType::f64, .width = 4};
    const auto model = make_model(ctx, options);
    const double flops = forward_flops(*model);
    for (const Shape& image : {Shape{32, 32, 2}, Shape{16, 24, 2}, Shape{16, 16, 2}}) {
      options.input = image;
      const auto native = make_model(ctx, options);
      EXPECT_EQ(logits_and_gradients(ctx, *model, image), logits_and_gradients(ctx, *native, image))
          << name << ' ' << detail::concat(image);
    }
    EXPECT_EQ(forward_flops(*model), flops);
    model->set_input({32, 32, 2});
    EXPECT_EQ(forward_flops(*model), 4 * flops - 3 * 2.0 * 4 * (name[6] == '2' ? 16 : 32));
    EXPECT_EQ(model->input(), Shape({32, 32, 2}));
  }
}

TEST(Models, RefuseSizesThatALayerCannotTake) {
  Context ctx;
  const auto lenet = make_model(ctx, {.name = "lenet-bn", .input = {28, 28, 1}});
  EXPECT_THROW(lenet->set_input({32, 32, 1}), InvalidArgument);
  EXPECT_THROW(lenet->set_input({28, 28, 3}), InvalidArgument);
  const Tensor x = Tensor::zeros(ctx, {2, 32, 32, 1}, DType::f32);
  EXPECT_THROW((void)lenet->forward(ctx, x, Mode::eval), InvalidArgument);
  EXPECT_EQ(lenet->input(), Shape({28, 28, 1}));
}

TEST(ResNet50, TakesImagesOfAnySizeFrom32Pixels) {
  Context ctx;
  for (const Shape& image : {Shape{32, 32, 3}, Shape{33, 47, 1}, Shape{96, 64, 3}}) {
    const auto model = small(ctx, "resnet50", image);
    const Tensor x = Tensor::zeros(ctx, Shape{2, image[0], image[1], image[2]});
    EXPECT_EQ(model->forward(ctx, x, Mode::eval).shape(), (Shape{2, 4}));
  }
  EXPECT_TRUE(contains(message_of([&] {
                         (void)small(ctx, "resnet50", Shape{31, 32, 3});
                       }),
                       "32x32 pixels"));
}

TEST(Models, TheirGradientsMatchDifferencesOfTheLoss) {
  Context ctx(Device::cpu(), {.threads = 1});
  for (const char* name : {"resnet20", "resnet18", "resnet9", "resnet9-plain"}) {
    const auto model = make_model(
        ctx,
        {.name = name, .input = Shape{8, 8, 2}, .classes = 4, .dtype = DType::f64, .width = 2});
    const Tensor x = random_tensor(ctx, Shape{6, 8, 8, 2}, DType::f64, 1);
    expect_gradients_match(ctx, *model, x, {0, 1, 2, 3, 3, 1}, 60, 30U);
  }
}

TEST(Models, BothBackendsGiveTheSameLogitsInSinglePrecision) {
  Context fast, reference(Device::cpu(), {.backend = Backend::reference});
  for (const char* name : {"resnet20", "resnet18", "resnet9", "resnet9-plain", "resnet34",
                           "resnet50", "resnet50-d", "vgg16-bn"}) {
    // Large enough that no BatchNorm normalises a handful of values, which would magnify errors.
    const Shape image{64, 64, 3};
    const auto a = small(fast, name, image), b = small(reference, name, image);
    const Tensor x = random_tensor(fast, Shape{6, 64, 64, 3}, DType::f32, 1);
    // Up to 50 layers one after another, each of sums of up to 288 terms, whose errors are random.
    const double tolerance = 50 * 17 * eps<float>;
    EXPECT_TRUE(near(values(fast, a->forward(fast, x, Mode::train)),
                     values(fast, b->forward(reference, x, Mode::train)), tolerance))
        << name;
  }
}

TEST(Models, RefuseOptionsThatDoNotFit) {
  Context ctx;
  const auto refusal = [&](const ModelOptions& options) {
    return message_of([&] { (void)make_model(ctx, options); });
  };
  EXPECT_TRUE(contains(refusal({.name = "resnet20", .input = Shape{784}}), "images [h, w, c]"));
  EXPECT_TRUE(contains(refusal({.name = "resnet9", .input = Shape{7, 8, 3}}), "8x8"));
  EXPECT_TRUE(contains(refusal({.classes = 0}), "classes"));
  EXPECT_TRUE(contains(refusal({.name = "resnet20", .width = -1}), "width"));
  EXPECT_TRUE(contains(refusal({.classifier_stddev = 0.0}), "classifier_stddev"));
  EXPECT_TRUE(contains(refusal({.name = "resnet9", .zero_gamma = true}), "zero_gamma"));
  EXPECT_TRUE(contains(refusal({.name = "mlp", .zero_gamma = true}), "zero_gamma"));
  EXPECT_TRUE(contains(refusal({.name = "lenet-bn", .width = 8}), "no width"));
  EXPECT_TRUE(
      contains(refusal({.name = "resnet9", .switches = {.celu_alpha = -1.0}}), "celu_alpha"));
  EXPECT_TRUE(
      contains(refusal({.name = "resnet9", .switches = {.logit_scale = 0.0}}), "logit_scale"));
}

}  // namespace
}  // namespace dkfac::nn
