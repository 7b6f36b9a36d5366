#include <cmath>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/nn/layers.h"

#include "nn/cuda/beside_host.h"
#include "support/tensors.h"

/// An Embedding and the other layers that accept sequences on a device, compared with the host.
namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

/// Means over positions of rows of a table.
std::unique_ptr<Layer> bag_of_words() {
  auto net = std::make_unique<Sequential>();
  net->add<Embedding>("embed", 40, 6)
      .add<SinusoidalPositions>("positions")
      .add<LayerNorm>("norm", 6)
      .add<GlobalPool>("mean", PoolKind::average);
  return net;
}

class DeviceTable : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, DeviceTable, ::testing::Values(DType::f64, DType::f32),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(DeviceTable, GivesTheRowsAndGradientsOfTheHost) {
  BesideHost both(bag_of_words, GetParam());
  std::vector<std::int32_t> words;
  for (int i = 0; i < 30 * 7; ++i) words.push_back(i * i % 37);
  const ConstTensorView x = view_of(words.data(), {30, 7});
  const Tensor dy = random_on_host(both.host, Shape{30, 6}, GetParam(), 2);
  const Tensor x_there = to_device(both.device, x), dy_there = to_device(both.device, dy);
  const ConstTensorView expected = both.on_host().forward(both.host, x, Mode::train);
  const ConstTensorView actual = both.on_device().forward(both.device, x_there, Mode::train);
  // Means of 7 positions after a normalisation of 6 features: c = 16.
  const double tolerance = 16 * 7 * spacing(GetParam());
  EXPECT_TRUE(near(device_values(both.device, actual), values(both.host, expected), tolerance));
  both.on_host().backward(both.host, dy, InputGrad::skipped);
  both.on_device().backward(both.device, dy_there, InputGrad::skipped);
  std::vector<double> gradients, gradients_there;
  const auto append = [](std::vector<double>& to, const std::vector<double>& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  both.on_host().visit([&](Layer& layer) {
    for (Parameter& p : layer.parameters()) append(gradients, values(both.host, p.grad));
  });
  both.on_device().visit([&](Layer& layer) {
    for (Parameter& p : layer.parameters())
      append(gradients_there, device_values(both.device, p.grad));
  });
  // Sums over 210 rows.
  EXPECT_TRUE(near(gradients_there, gradients, 210 * spacing(GetParam()) * 16));
}

TEST(DeviceTableControl, AnIndexOutOfRangeIsNaNAndAttentionIsRefused) {
  BesideHost both([] { return std::make_unique<Embedding>(3, 2); }, DType::f32);
  const std::vector<std::int32_t> words{1, 3};
  const Tensor x = to_device(both.device, view_of(words.data(), {2, 1}));
  const std::vector<double> y =
      device_values(both.device, both.on_device().forward(both.device, x, Mode::eval));
  EXPECT_TRUE(std::isfinite(y[0]) && std::isnan(y[2]) && std::isnan(y[3]));
  SelfAttention attention(4, 2);
  const Tensor qkv = Tensor::zeros(both.device, {2, 3, 12});
  EXPECT_THROW(attention.forward(both.device, qkv, Mode::eval), DeviceError);
}

}  // namespace
}  // namespace dkfac::nn
