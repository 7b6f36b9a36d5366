// Models as programs in C++ hold them: on the stack, with members that they registered or not.
#include <memory>
#include <string>
#include <vector>

#include "support.hpp"

namespace {

/// As in PyTorch's example of MNIST.
struct Net : torch::nn::Module {
  Net() {
    register_module("conv", conv);
    register_module("fc", fc);
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return fc->forward(torch::relu(conv->forward(x)).flatten(1));
  }
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(1, 3, 3)};
  torch::nn::Linear fc{12, 2};
};

/// Two steps; the weights after them, and the table of the layers.
template <class Model>
std::vector<torch::Tensor> trained(Model& model, const torch::Tensor& x, std::string* table) {
  torch::optim::SGD sgd(model.parameters(), 0.1);
  Kfac kfac(model, sgd, options());
  *table = kfac.describe();
  for (int step = 0; step < 2; ++step) {
    sgd.zero_grad();
    model.forward(x).pow(2).mean().backward();
    EXPECT_TRUE(kfac.step());
    EXPECT_EQ(kfac.report().statistics_refreshed, 1);
  }
  return model.parameters();
}

TEST(LibTorchModules, AModelOnTheStackGivesTheBitsOfASharedOne) {
  const torch::Tensor x = rand({5, 1, 4, 4});
  std::string of_stack, of_shared;
  torch::manual_seed(1);
  Net on_stack;
  torch::manual_seed(1);
  const auto shared = std::make_shared<Net>();
  const auto expected = trained(*shared, x, &of_shared);
  EXPECT_EQ(distance(trained(on_stack, x, &of_stack), expected), 0);
  EXPECT_EQ(of_stack, of_shared);
}

TEST(LibTorchModules, ASequentialOnTheStackGivesTheBitsOfItsHolder) {
  const torch::Tensor x = rand({5, 4});
  std::string of_stack, of_holder;
  const auto make = [](auto& net) {
    torch::manual_seed(2);
    net.push_back(torch::nn::Linear(4, 3));
    net.push_back(torch::nn::Tanh());
    net.push_back(torch::nn::Linear(3, 2));
    net.to(torch::kDouble);
  };
  torch::nn::SequentialImpl on_stack;
  torch::nn::Sequential holder;
  make(on_stack);
  make(*holder);
  const auto expected = trained(*holder, x, &of_holder);
  EXPECT_EQ(distance(trained(on_stack, x, &of_stack), expected), 0);
  EXPECT_EQ(of_stack, of_holder);
}

TEST(LibTorchModules, AnEvaluatedModelOnTheStackIsNotRecorded) {
  Net net;
  torch::optim::SGD sgd(net.parameters(), 0.1);
  Kfac kfac(net, sgd, options());
  net.eval();
  net.forward(rand({5, 1, 4, 4})).pow(2).mean().backward();
  refuse([&] { kfac.step(); }, "no backward pass of the model in training mode");
}

TEST(LibTorchModules, ALayerAloneMayBeOnTheStack) {
  torch::nn::LinearImpl layer(4, 2);
  torch::optim::SGD sgd(layer.parameters(), 0.1);
  Kfac kfac(layer, sgd, options());
  layer.forward(torch::randn({5, 4})).pow(2).mean().backward();
  EXPECT_TRUE(kfac.step());
}

TEST(LibTorchModules, MembersThatAreNotRegisteredAreNamedAndLeftToTheOptimizer) {
  struct Forgetful : Net {
    torch::Tensor forward(const torch::Tensor& x) { return last->forward(Net::forward(x)); }
    torch::nn::Linear last{2, 2};  // Without register_module().
    torch::nn::LinearImpl by_value{2, 2};
  } net;
  net.last->to(torch::kDouble);
  std::vector<torch::Tensor> parameters = net.parameters();
  for (const auto& p : net.last->parameters()) parameters.push_back(p);
  torch::optim::SGD sgd(parameters, 0.1);
  Kfac kfac(net, sgd, options());
  const std::string text = kfac.describe();
  EXPECT_NE(text.find("parameter 5 of the optimizer"), std::string::npos) << text;
  EXPECT_NE(text.find("register_module"), std::string::npos) << text;
  EXPECT_EQ(text.find("parameter 4 of the optimizer"), std::string::npos) << text;
  net.forward(rand({5, 1, 4, 4})).pow(2).mean().backward();
  const torch::Tensor expected = net.last->weight - 0.1 * net.last->weight.grad();
  EXPECT_TRUE(kfac.step());
  EXPECT_EQ(distance({net.last->weight}, {expected}), 0);
}

TEST(LibTorchModules, AModelWithoutRegisteredLayersSaysHowToRegisterThem) {
  struct Empty : torch::nn::Module {
    torch::nn::Linear fc{2, 2};
  } net;
  torch::optim::SGD sgd(net.fc->parameters(), 0.1);
  refuse([&] { Kfac(net, sgd, options()); }, "register_module()");
}

/// Parameters after some steps of an optimizer with this rule of the step length.
template <class Optimizer>
std::vector<torch::Tensor> trained(std::int32_t rule) {
  torch::manual_seed(4);
  torch::nn::Sequential net(torch::nn::Linear(4, 3), torch::nn::Tanh(), torch::nn::Linear(3, 2));
  net->to(torch::kDouble);
  Optimizer optimizer(net->parameters(), 0.01);
  libtorch::Options o;
  o.step_length = rule;
  Kfac kfac(*net, optimizer, o);
  const torch::Tensor x = rand({16, 4});
  for (int i = 0; i < 5; ++i) {
    optimizer.zero_grad();
    net->forward(x).square().mean().backward();
    EXPECT_TRUE(kfac.step());
  }
  return net->parameters();
}

TEST(LibTorch, StepsLeaveTheGradientGraduallyBeforeAdam) {
  using torch::optim::Adam;
  using torch::optim::SGD;
  const auto gradual = trained<Adam>(DKFAC_LENGTH_GRADUAL);
  EXPECT_EQ(distance(trained<Adam>(DKFAC_LENGTH_AUTO), gradual), 0);
  EXPECT_GT(distance(trained<Adam>(DKFAC_LENGTH_GRADIENT), gradual), 1e-6);
  EXPECT_EQ(distance(trained<SGD>(DKFAC_LENGTH_AUTO), trained<SGD>(DKFAC_LENGTH_GRADIENT)), 0);
}

}  // namespace
