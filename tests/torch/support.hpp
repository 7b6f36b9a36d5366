#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dkfac/torch.hpp"

/// Models and expectations of the tests of dkfac/torch.hpp.
using namespace dkfac;  // Must not hide ::torch.
using libtorch::Error;
using libtorch::Kfac;
using torch::nn::AnyModule;

constexpr double kEps = std::numeric_limits<double>::epsilon();
constexpr double kLambda = 0.1;

inline libtorch::Options options() {
  libtorch::Options o;
  o.step_length = DKFAC_LENGTH_NONE;
  o.early_refreshes = 0;
  o.statistics_interval = o.inverse_interval = 1;
  o.damping = kLambda;
  o.inverse_method = DKFAC_EIGEN;
  return o;
}

inline torch::Tensor rand(std::vector<std::int64_t> shape) {
  return torch::randn(shape, torch::kDouble);
}

/// Any module in f64 with its optimizer; `kfac` may be null.
struct Model {
  explicit Model(torch::nn::Sequential layers, const libtorch::Options& o = options())
      : net(std::move(layers)) {
    net->to(torch::kDouble);
    sgd = std::make_unique<torch::optim::SGD>(net->parameters(), 1.0);
    kfac = std::make_unique<Kfac>(*net, *sgd, o);
  }
  void backward(const torch::Tensor& x) {
    sgd->zero_grad();
    torch::Tensor y = net->forward(x);
    const torch::Tensor weights =
        torch::linspace(0.5, 2, y.numel(), torch::kDouble).view(y.sizes());
    ((y + 0.1 * y * y) * weights).sum().div(static_cast<double>(x.size(0))).backward();
  }
  std::vector<torch::Tensor> grads() const {
    std::vector<torch::Tensor> all;
    for (const auto& p : net->parameters()) all.push_back(p.grad().clone());
    return all;
  }
  torch::nn::Sequential net;
  std::unique_ptr<torch::optim::SGD> sgd;
  std::unique_ptr<Kfac> kfac;
};

inline double distance(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    most = std::max(most, ((a[i] - b[i]).norm() / b[i].norm().clamp_min(1e-30)).item<double>());
  return most;
}

template <class F>
void refuse(F&& call, const std::string& text) {
  try {
    call();
    ADD_FAILURE() << "no error with: " << text;
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(text), std::string::npos) << e.what();
  }
}
