// dkfac/torch.hpp with LibTorch: exact steps in float64, and what happens beside the usual loop.
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support.hpp"

namespace {

struct Case {
  std::string name;
  std::function<torch::nn::Sequential()> make;
  torch::Tensor x;
};
template <class Layer>
std::function<torch::nn::Sequential()> one(Layer layer) {
  return [layer] { return torch::nn::Sequential(layer); };
}

std::vector<Case> one_sample_cases() {
  namespace nn = torch::nn;
  return {
      {"linear", one(nn::Linear(5, 3)), rand({1, 5})},
      {"linear without bias", one(nn::Linear(nn::LinearOptions(5, 3).bias(false))), rand({1, 5})},
      {"linear of rank 3", one(nn::Linear(5, 3)), rand({1, 1, 5})},
      {"linear of rank 4", one(nn::Linear(5, 3)), rand({1, 1, 1, 5})},
      {"conv", one(nn::Conv2d(nn::Conv2dOptions(2, 3, {2, 3}))), rand({1, 2, 2, 3})},
      {"conv, stride and padding", one(nn::Conv2d(nn::Conv2dOptions(2, 3, 3).stride(2).padding(1))),
       rand({1, 2, 2, 2})},
      {"conv, dilation", one(nn::Conv2d(nn::Conv2dOptions(2, 3, {2, 3}).dilation({2, 1}))),
       rand({1, 2, 3, 3})},
      {"conv, same", one(nn::Conv2d(nn::Conv2dOptions(2, 3, {3, 2}).padding(torch::kSame))),
       rand({1, 2, 1, 1})},
      {"conv, reflected",
       one(nn::Conv2d(nn::Conv2dOptions(2, 3, 5).padding(1).padding_mode(torch::kReflect))),
       rand({1, 2, 3, 3})},
      {"conv1d", one(nn::Conv1d(nn::Conv1dOptions(2, 3, 4).dilation(2))), rand({1, 2, 7})},
      {"embedding", one(nn::Embedding(6, 3)), torch::tensor({{4}})},
  };
}

/// One sample at one position: F = v v^T with the gradient v of the layer, so that
/// (F + lambda I)^-1 v = v / (lambda + |v|^2).
double one_sample_error(const Case& c, double lambda) {
  Model model(c.make());
  model.backward(c.x);
  std::vector<torch::Tensor> expected = model.grads();
  double squares = 0;
  for (const auto& v : expected) squares += v.square().sum().item<double>();
  for (auto& v : expected) v = v / (lambda + squares);
  EXPECT_TRUE(model.kfac->step()) << c.name;
  return distance(model.grads(), expected);
}

TEST(LibTorch, OneSampleGivesTheStepOfItsExplicitFisher) {
  torch::manual_seed(3);
  for (const Case& c : one_sample_cases()) {
    // Eigenvectors of matrices of n <= 19 rows, whose condition is below 1e4 here: 1e4 n eps.
    EXPECT_LT(one_sample_error(c, kLambda), 1e4 * 19 * kEps) << c.name;
    EXPECT_GT(one_sample_error(c, 2 * kLambda), 1e-5) << c.name;
  }
}

TEST(LibTorch, LayerNormHasABlockOfEachFeature) {
  Model model(torch::nn::Sequential(torch::nn::LayerNorm(torch::nn::LayerNormOptions({5}))));
  model.backward(rand({1, 5}));
  const std::vector<torch::Tensor> v = model.grads();
  const torch::Tensor scale = kLambda + v[0].square() + v[1].square();
  EXPECT_TRUE(model.kfac->step());
  // Blocks of 2x2 in closed form: 100 eps of each.
  EXPECT_LT(distance(model.grads(), {v[0] / scale, v[1] / scale}), 100 * 2 * kEps);
  EXPECT_GT(distance(model.grads(), v), 1e-3);
}

/// Gradients after the same step through the C interface, with the input and output gradient that
/// autograd gives.
std::vector<torch::Tensor> by_hand(torch::nn::Sequential& net, const dkfac_layer_spec& spec,
                                   const torch::Tensor& x, const torch::Tensor& g,
                                   const torch::Tensor& mean, const torch::Tensor& inv_std) {
  const auto view = [](const torch::Tensor& t) { return libtorch::detail::view_of(t, "by hand"); };
  libtorch::Options o = options();
  o.dtype = DKFAC_F64;
  libtorch::detail::State state;  // Destroys the handle.
  dkfac_comm* comm = nullptr;
  EXPECT_EQ(dkfac_comm_self(nullptr, &comm), DKFAC_OK);
  EXPECT_EQ(dkfac_preconditioner_create(comm, &o, nullptr, &state.handle), DKFAC_OK);
  dkfac_comm_destroy(comm);
  std::int32_t id = 0;
  EXPECT_EQ(dkfac_preconditioner_add_layer(state.handle, "one", &spec, &id), DKFAC_OK);
  const dkfac_tensor vx = view(x), vg = view(g);
  if (mean.defined()) {
    const dkfac_tensor vm = view(mean), vs = view(inv_std);
    EXPECT_EQ(
        dkfac_preconditioner_record_normalization(state.handle, 0, &vx, &vm, &vs, &vg, nullptr),
        DKFAC_OK);
  } else {
    EXPECT_EQ(dkfac_preconditioner_record_input(state.handle, 0, &vx, nullptr), DKFAC_OK);
    EXPECT_EQ(dkfac_preconditioner_record_grad_output(state.handle, 0, &vg, nullptr), DKFAC_OK);
  }
  std::vector<torch::Tensor> grads;
  for (const auto& p : net->parameters()) grads.push_back(p.grad().clone());
  const dkfac_layer_grad grad{0, view(grads[0].view(-1)), view(grads[1])};
  EXPECT_EQ(dkfac_preconditioner_step(state.handle, &grad, 1, nullptr, nullptr), DKFAC_OK)
      << dkfac_last_error();
  return grads;
}

TEST(LibTorch, BatchesGiveTheBitsOfTheCInterface) {
  torch::manual_seed(4);
  const auto compare = [](torch::nn::Sequential net, const torch::Tensor& x,
                          std::vector<std::int64_t> shape, dkfac_layer_spec spec, bool norm) {
    Model model(net);
    torch::Tensor g, seen;
    model.sgd->zero_grad();
    torch::Tensor y = net->forward(x);
    y.register_hook([&g](const torch::Tensor& arrived) { g = arrived.clone(); });
    (y * y).mean().backward();
    torch::Tensor mean, inv_std;
    if (norm) {
      const auto moments = torch::var_mean(x.transpose(0, 1).flatten(1), 1, false);
      mean = std::get<1>(moments);
      inv_std = torch::rsqrt(std::get<0>(moments) + 1e-5);
    }
    if (!shape.empty()) g = g.view(shape);
    const std::vector<torch::Tensor> before = model.grads();
    const auto expected = by_hand(net, spec, shape.empty() ? x : x.view(shape), g, mean, inv_std);
    EXPECT_TRUE(model.kfac->step());
    // Means over a batch of normalisations are summed in two orders: 100 n eps, n = 40.
    const double bar = norm ? 100 * 40 * kEps : 0;
    EXPECT_LE(distance(model.grads(), expected), bar);
    EXPECT_GT(distance(before, expected), 1e-3);
  };
  dkfac_layer_spec linear = libtorch::detail::spec_of(DKFAC_LINEAR);
  linear.in = 5;
  linear.out = 3;
  compare(torch::nn::Sequential(torch::nn::Linear(5, 3)), rand({6, 4, 5}), {}, linear, false);
  compare(torch::nn::Sequential(torch::nn::Linear(5, 3)), rand({6, 5}), {}, linear, false);
  dkfac_layer_spec conv = libtorch::detail::spec_of(DKFAC_CONV2D);
  conv.in = conv.out = 4;
  conv.groups = 2;
  for (int i = 0; i < 2; ++i) conv.kernel[i] = 3, conv.stride[i] = 2, conv.padding[i] = 1;
  compare(torch::nn::Sequential(
              torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 4, 3).stride(2).padding(1).groups(2))),
          rand({6, 4, 5, 7}), {}, conv, false);
  dkfac_layer_spec norm = libtorch::detail::spec_of(DKFAC_NORM);
  norm.channels = 3;
  compare(torch::nn::Sequential(torch::nn::BatchNorm2d(3)), rand({5, 3, 2, 4}), {}, norm, true);
  compare(torch::nn::Sequential(torch::nn::BatchNorm1d(3)), rand({5, 3, 8}), {5, 3, 1, 8}, norm,
          true);
}

torch::nn::Sequential mlp() {
  return torch::nn::Sequential(torch::nn::Linear(4, 6), torch::nn::Tanh(), torch::nn::Linear(6, 2));
}
torch::nn::Sequential copy_of(const Model& model) {
  torch::nn::Sequential copy(mlp());
  copy->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < copy->parameters().size(); ++i)
    copy->parameters()[i].copy_(model.net->parameters()[i]);
  return copy;
}

TEST(LibTorch, AStepAfterAFailedOneIsAsIfItHadNotBeen) {
  libtorch::Options o = options();
  o.kl_clip = 0.01;  // Wants a rate, also where records are dropped.
  Model model(mlp(), o);
  Model reference(copy_of(model), o);
  const torch::Tensor x = rand({8, 4}), other = rand({8, 4});
  const std::vector<std::function<void()>> failures = {
      [&] { refuse([&] { model.kfac->step(); }, "no backward pass"); },
      [&] {  // A second backward pass without a step.
        model.backward(other);
        refuse([&] { model.backward(other); }, "recorded more than micro_batches = 1 times");
      },
      [&] {
        torch::Tensor input = other.clone();
        const torch::Tensor y = model.net->forward(input).sum();
        input.mul_(2);
        refuse([&] { y.backward(); }, "changed in place before its backward pass");
      },
      [&] {  // Rejected for a NaN.
        model.backward(other);
        model.net->parameters()[0].mutable_grad()[0][0] = std::nan("");
        EXPECT_FALSE(model.kfac->step());
      },
      [&] { model.backward(other), model.kfac->reset(); },
  };
  for (const auto& failure : failures) {
    failure();
    model.backward(x);
    reference.backward(x);
    EXPECT_TRUE(model.kfac->step());
    EXPECT_TRUE(reference.kfac->step());
    EXPECT_EQ(distance(model.net->parameters(), reference.net->parameters()), 0);
  }
  model.backward(other);
  EXPECT_TRUE(model.kfac->step());
  EXPECT_GT(distance(model.net->parameters(), reference.net->parameters()), 1e-6);
}

TEST(LibTorch, TheClipHeedsTheRatesOfGroups) {
  const torch::Tensor x = rand({8, 4});
  const auto first_step = [&](double kappa, double rate, auto&& look) {
    torch::manual_seed(5);
    torch::nn::Sequential net(mlp());
    net->to(torch::kDouble);
    std::vector<torch::optim::OptimizerParamGroup> groups;
    for (std::size_t i = 0; i < net->parameters().size(); ++i)
      groups.emplace_back(std::vector<at::Tensor>{net->parameters()[i]},
                          std::make_unique<torch::optim::SGDOptions>(i < 2 ? rate : 1));
    torch::optim::SGD sgd(groups, torch::optim::SGDOptions(0.1));
    libtorch::Options o = options();
    o.kl_clip = kappa;
    libtorch::Kfac kfac(*net, sgd, o);
    net->forward(x).pow(2).sum().backward();
    std::vector<at::Tensor> raw;
    for (const at::Tensor& p : net->parameters()) raw.push_back(p.grad().clone());
    EXPECT_TRUE(kfac.step());
    double sum = 0;
    for (std::size_t i = 0; i < raw.size(); ++i)
      sum += (i < 2 ? rate * rate : 1) *
             (raw[i] * net->parameters()[i].grad()).sum().template item<double>();
    look(sum, kfac.report().kl_factor);
  };
  for (const double rate : {0.0, 1e-5, 0.5})
    first_step(0, rate, [&](double sum, double) {
      const double nu = std::min(1.0, std::sqrt(1e-4 / sum));
      ASSERT_LT(nu, 0.9);
      first_step(1e-4, rate, [&](double, double found) { EXPECT_NEAR(found, nu, 1e-10 * nu); });
    });
}

TEST(LibTorch, AGradientWithoutCurvatureThatIsNotFiniteRejectsTheStep) {
  libtorch::Options o = options();
  o.skip = {"2"};
  o.kl_clip = 0.01;
  Model model(mlp(), o);
  model.backward(rand({8, 4}));
  model.net->parameters().back().mutable_grad()[0] = std::nan("");
  EXPECT_FALSE(model.kfac->step());
  model.sgd->param_groups()[0].options().set_lr(0);  // Allowed beside a clip.
  model.backward(rand({8, 4}));
  EXPECT_TRUE(model.kfac->step());
}

TEST(LibTorch, PassesInEvalModeAndWithoutGradientsRecordNothing) {
  Model model(mlp());
  Model reference(copy_of(model));
  const torch::Tensor x = rand({8, 4});
  model.net->eval();
  model.net->forward(x).sum().backward();
  refuse([&] { model.kfac->step(); }, "in training mode");
  model.net->train();
  {
    const torch::NoGradGuard no_grad;
    (void)model.net->forward(x);
  }
  (void)model.net->forward(x);  // Without a backward pass.
  model.kfac->recording(false);
  model.backward(x);
  model.kfac->recording(true);
  model.backward(x);
  reference.backward(x);
  EXPECT_TRUE(model.kfac->step() && reference.kfac->step());
  EXPECT_EQ(distance(model.net->parameters(), reference.net->parameters()), 0);
}

TEST(LibTorch, MicroBatchesAddUpToTheBatch) {
  libtorch::Options two = options();
  two.micro_batches = 2;
  Model model(mlp(), two);
  Model reference(copy_of(model));
  const torch::Tensor x = rand({8, 4});
  reference.sgd->zero_grad();
  reference.net->forward(x).square().sum(1).mean().backward();
  model.backward(x);
  refuse([&] { model.kfac->step(); }, "1 of micro_batches = 2 backward passes were seen");
  model.sgd->zero_grad();
  for (const auto& half : x.chunk(2))
    model.net->forward(half).square().sum(1).mean().div(2).backward();
  EXPECT_TRUE(model.kfac->step() && reference.kfac->step());
  // Sums over 8 samples in two orders, behind inverses of condition below 1e3: 1e3 * 8 eps.
  EXPECT_LT(distance(model.net->parameters(), reference.net->parameters()), 1e3 * 8 * kEps);
}

struct TwoHeadsImpl : torch::nn::Module {
  torch::nn::Linear first{4, 3}, second{4, 3};
  TwoHeadsImpl() {
    register_module("first", first);
    register_module("second", second);
  }
};
TORCH_MODULE(TwoHeads);

TEST(LibTorch, AnUnusedLayerIsLeftAndAMissedUseIsAnError) {
  TwoHeads model;
  torch::optim::SGD sgd(model->parameters(), 1.0);
  Kfac kfac(*model, sgd, options());
  const torch::Tensor x = torch::randn({5, 4}), before = model->second->weight.detach().clone();
  model->first(x).square().sum().backward();
  EXPECT_TRUE(kfac.step());
  EXPECT_TRUE(torch::equal(model->second->weight, before));
  sgd.zero_grad();
  (model->first(x).sum() + model->second->weight.sum()).backward();
  refuse([&] { kfac.step(); }, "layer 'second' has a gradient, but no use of its weight was seen");
}

TEST(LibTorch, DifferentNumbersOfSamplesAreAnErrorThatSamplesSolves) {
  TwoHeads model;
  torch::optim::SGD sgd(model->parameters(), 1.0);
  Kfac kfac(*model, sgd, options());
  const torch::Tensor x = torch::randn({5, 4});
  const auto pass = [&] {
    sgd.zero_grad();
    (model->first(x).sum() + model->second(x.repeat({2, 1})).sum()).backward();
  };
  refuse(pass, "samples in the first dimension");
  kfac.samples(5);
  pass();
  EXPECT_TRUE(kfac.step());
}

TEST(LibTorch, TwoModelsAndThreadsKeepTheirRecordsApart) {
  Model a(mlp()), b(mlp());
  Model alone(copy_of(a));
  const torch::Tensor x = rand({8, 4}), other = rand({3, 4});
  std::thread([&] { a.backward(x); }).join();
  b.backward(other);
  EXPECT_TRUE(b.kfac->step());
  alone.backward(x);
  EXPECT_TRUE(a.kfac->step() && alone.kfac->step());
  EXPECT_EQ(distance(a.net->parameters(), alone.net->parameters()), 0);
}

TEST(LibTorch, MayBeDestroyedBetweenForwardAndBackward) {
  Model model(mlp());
  torch::Tensor loss = model.net->forward(rand({8, 4})).sum();
  model.kfac.reset();
  loss.backward();
  EXPECT_TRUE(model.net->parameters()[0].grad().defined());
  model.kfac = std::make_unique<Kfac>(*model.net, *model.sgd, options());
  model.backward(rand({8, 4}));
  EXPECT_TRUE(model.kfac->step());
}

TEST(LibTorch, AWeightHasOneKfac) {
  Model model(mlp());
  Model reference(copy_of(model));
  refuse([&] { Kfac(*model.net, *model.sgd, options()); }, "the weight of layer '0' already has");
  libtorch::Options first = options(), last = options();
  first.skip = {"2"};
  last.skip = {"0"};
  refuse([&] { Kfac(*model.net, *model.sgd, last); }, "the weight of layer '2' already has");
  const torch::Tensor x = rand({8, 4});
  model.backward(x);
  reference.backward(x);
  EXPECT_TRUE(model.kfac->step() && reference.kfac->step());
  EXPECT_EQ(distance(model.net->parameters(), reference.net->parameters()), 0);
  model.kfac = nullptr;  // Makes room, and weights may be divided.
  Kfac lower(*model.net, *model.sgd, first);
  const Kfac upper(*model.net, *model.sgd, last);
  model.backward(x);
  EXPECT_TRUE(lower.step());
}

TEST(LibTorch, WhatHasNoCurvatureIsNamedWithTheReason) {
  namespace nn = torch::nn;
  nn::Linear tied(4, 4);
  nn::Sequential net(tied, nn::Tanh(), nn::PReLU(), nn::Linear(4, 4), nn::Linear(4, 2));
  net[3]->as<nn::Linear>()->weight = tied->weight;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  const std::string text = Kfac(*net, sgd, options()).describe();
  for (const char* part : {"shares a parameter with 3", "torch::nn::PReLUImpl has no curvature"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  libtorch::Options skip = options();
  skip.skip = {"4"};
  refuse([&] { Kfac(*net, sgd, skip); }, "no layer of the model gets curvature");
  nn::Linear single(2, 2);
  torch::optim::SGD other(single->parameters(), 0.1);
  EXPECT_NE(Kfac(*single, other).describe().find("model"), std::string::npos);
  torch::optim::LBFGS lbfgs(single->parameters());
  refuse([&] { Kfac(*single, lbfgs); }, "LBFGS");
}

}  // namespace
