#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/nn/gradient_check.h"
#include "dkfac/nn/layers.h"
#include "dkfac/nn/model.h"
#include "dkfac/nn/whitening.h"

#include "nn/shared/memory.h"
#include "support/host_waits.h"
#include "support/on_device.h"
#include "support/tensors.h"
#include "support/whitened.h"

/// The state of a model on a device before its first pass.
namespace dkfac::testing {
namespace {

nn::ModelOptions options_of(const std::string& name) {
  nn::ModelOptions options{.name = name, .input = Shape{32, 32, 3}, .seed = 7};
  if (name == "lenet-bn") options.input = Shape{28, 28, 1};
  if (name.starts_with("resnet")) options.width = 8;
  return options;
}

class ModelOnDevice : public ::testing::TestWithParam<std::string> {
 protected:
  Context ctx{Device::cuda()}, host;
};

TEST_P(ModelOnDevice, BeginsWithTheBitsOfTheHost) {
  nn::ModelOptions options = options_of(GetParam());
  for (const bool all : {false, true}) {
    if (all) {
      options.init = nn::WeightInit::uniform;
      options.classifier_stddev = 0.01;
    }
    const auto there = nn::make_model(ctx, options), here = nn::make_model(host, options);
    EXPECT_EQ(there->parameters().device(), ctx.device());
    EXPECT_EQ(device_values(ctx, there->parameters()), values(host, here->parameters()));
    EXPECT_EQ(device_values(ctx, there->buffers()), values(host, here->buffers()));
    EXPECT_EQ(there->summary(), here->summary());
    const auto tensors = there->named_tensors(), expected = here->named_tensors();
    ASSERT_EQ(tensors.size(), expected.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_EQ(tensors[i].name, expected[i].name);
      EXPECT_EQ(tensors[i].view.device(), ctx.device());
      EXPECT_EQ(device_values(ctx, tensors[i].view), values(host, expected[i].view));
    }
  }
}

std::vector<std::string> small_names() {
  std::vector<std::string> names = nn::model_names();
  std::erase(names, "resnet32");  // Like resnet20, but deeper.
  // 138 million weights of the layers that lenet-bn has too.
  if (is_emulated()) std::erase(names, "vgg16-bn");
  return names;
}
std::string name_of_model(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Models, ModelOnDevice, ::testing::ValuesIn(small_names()), name_of_model);

TEST(LayerOnDevice, BindsMemoryOfTheDevice) {
  Context ctx(Device::cuda()), host;
  nn::BatchNorm2d there(3, {.initial_scale = 0.5}), here(3, {.initial_scale = 0.5});
  Tensor on_device = nn::bind_standalone(ctx, there, DType::f32, 5);
  const Tensor on_host = nn::bind_standalone(host, here, DType::f32, 5);
  EXPECT_EQ(device_values(ctx, on_device), values(host, on_host));
  EXPECT_EQ(there.parameters().at(0).value.device(), ctx.device());
  EXPECT_EQ(there.parameters().at(0).grad.device(), ctx.device());
}

TEST(LayerOnDevice, RefusesGradientChecks) {
  Context ctx(Device::cuda());
  nn::Relu relu;
  const Tensor x = Tensor::zeros(ctx, {2, 3}, DType::f64);
  try {
    (void)nn::check_gradients(ctx, relu, x);
    ADD_FAILURE() << "took differences of a device";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("cuda:0"), std::string::npos) << error.what();
  }
}

TEST(WhiteningOnDevice, TakesFiltersOfTheHostAndOfTheDevice) {
  Context ctx(Device::cuda()), host;
  data::Dataset data;
  data.name = "noise";
  data.count = 3;
  data.height = data.width = 8;
  data.channels = 3;
  for (std::int64_t i = 0; i < data.count * data.image_size(); ++i)
    data.pixels.push_back(static_cast<std::uint8_t>(i * i * 31 % 251));
  const data::Normalization normalization{.mean = {0.5, 0.4, 0.3}, .stddev = {0.2, 0.3, 0.25}};
  const Tensor filters = nn::whitening_filters(ctx, images_of(data, normalization));
  EXPECT_EQ(filters.view().device(), Device::cpu());
  EXPECT_EQ(values(host, filters),
            values(host, nn::whitening_filters(host, images_of(data, normalization))));

  const auto options = options_of("resnet9");
  const auto there = nn::make_model(ctx, options), here = nn::make_model(host, options);
  const auto before = device_values(ctx, there->buffers());
  ASSERT_EQ(nn::whitening_kernel(*there), 3);
  nn::set_whitening(host, *here, filters);
  nn::set_whitening(ctx, *there, filters);
  const auto expected = values(host, here->buffers());
  EXPECT_NE(device_values(ctx, there->buffers()), before) << "control";
  EXPECT_EQ(device_values(ctx, there->buffers()), expected);
  const auto again = nn::make_model(ctx, options);
  nn::set_whitening(ctx, *again, to_device(ctx, filters));
  EXPECT_EQ(device_values(ctx, again->buffers()), expected);
}

TEST(WeightsOf16Bits, AreThoseOfTheParametersInEveryForwardPass) {
  Context ctx(Device::cuda()), host;
  for (const DType compute : {DType::f16, DType::bf16}) {
    nn::ModelOptions options = options_of("resnet20");
    options.compute = compute;
    const auto model = nn::make_model(ctx, options);
    const Tensor x =
        cast_to(host, random_tensor(host, Shape{2, 32, 32, 3}, DType::f32, 1), compute);
    const Tensor there = to_device(ctx, x);
    std::vector<double> before;
    for (const double factor : {1.0, 3.0}) {
      ops::axpby(ctx, factor, model->parameters(), 0, model->parameters());
      before = device_values(ctx, model->forward(ctx, there, nn::Mode::train));
      const Tensor expected = cast_to(host, to_host(ctx, model->parameters()), compute);
      const std::vector<double> rounded = values(host, expected);
      std::size_t begin = 0;
      int seen = 0;
      model->visit([&](nn::Layer& layer) {
        for (const nn::Parameter& p : layer.parameters()) {
          const auto end = begin + static_cast<std::size_t>(p.shape.numel());
          if (!p.rounded.empty()) {
            EXPECT_EQ(p.role, nn::Role::weight);
            EXPECT_EQ(p.rounded.dtype(), compute);
            EXPECT_EQ(device_values(ctx, p.rounded.flat()),
                      std::vector<double>(rounded.begin() + static_cast<std::ptrdiff_t>(begin),
                                          rounded.begin() + static_cast<std::ptrdiff_t>(end)));
            ++seen;
          }
          begin = end;
        }
      });
      EXPECT_GT(seen, 10) << "of 22 weights";
    }
    // The same bits as from weights that each layer rounds by itself.
    model->visit([](nn::Layer& layer) {
      for (nn::Parameter& p : layer.parameters()) p.rounded = {};
    });
    EXPECT_EQ(device_values(ctx, model->forward(ctx, there, nn::Mode::train)), before);
  }
}

}  // namespace
}  // namespace dkfac::testing
