// One rank of ranks.py: trains a model on its part of the batch, and prints the weights of each
// case. Arguments: rank, ranks, file of the store, cases.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/torch.h>

#include "dkfac/torch.hpp"
#include "dkfac/torch/process_group.hpp"

namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroupGloo>;

struct Net : torch::nn::Module {
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(2, 4, 3).padding(1)};
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({16})};
  torch::nn::Linear fc{64, 8}, out{8, 3};

  Net() {
    register_module("conv", conv);
    register_module("norm", norm);
    register_module("fc", fc);
    register_module("out", out);
    to(torch::kDouble);
    const torch::NoGradGuard no_grad;
    double speed = 0;
    for (torch::Tensor& p : parameters())
      p.copy_(0.3 * torch::sin(++speed * torch::arange(p.numel(), torch::kDouble).view(p.sizes())));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor h = torch::tanh(norm(conv(x).flatten(2)));
    return out(torch::tanh(fc(h.flatten(1))));
  }
};

Group connect(int rank, int size, const std::string& path) {
  const auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(20));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(
      c10::make_intrusive<c10d::FileStore>(path, size), rank, size, options);
}

void average_gradients(const Net& net, const Group& group) {
  for (const torch::Tensor& p : net.parameters()) {
    std::vector<torch::Tensor> grads{p.grad()};
    group->allreduce(grads)->wait();
    grads[0].div_(group->getSize());
  }
}

dkfac::libtorch::Options options_of(const std::string& name, const Group& group) {
  dkfac::libtorch::Options options;
  options.damping = 0.01;
  options.statistics_interval = options.inverse_interval = 1;
  options.early_refreshes = 0;
  options.step_length = DKFAC_LENGTH_NONE;
  options.inverse_method = DKFAC_EIGEN;
  if (name == "accumulated") options.micro_batches = 2;
  if (name == "all ranks work") options.grad_worker_fraction = 1;
  // Of one rank without a communicator: the reference; of several: what the statistics alone
  // change.
  if (group->getSize() > 1 && name != "statistics of one rank")
    options.comm = dkfac::libtorch::comm_of(group);
  return options;
}

/// The part [begin, begin + count) of the batch of a step.
torch::Tensor loss_of(Net& net, int step, int begin, int count) {
  const torch::Tensor at = torch::arange(8.0 * 32, torch::kDouble) + 256 * step;
  const torch::Tensor x = torch::sin(0.7 * at).view({8, 2, 4, 4}).narrow(0, begin, count);
  const torch::Tensor y =
      torch::cos(0.3 * at).view({8, 32}).narrow(1, 0, 3).narrow(0, begin, count);
  return (net.forward(x) - y).square().mean();
}

void train(const std::string& name, int rank, const Group& group) {
  Net net;  // On the stack.
  torch::optim::SGD sgd(net.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  const dkfac::libtorch::Options options = options_of(name, group);
  dkfac::libtorch::Kfac kfac(net, sgd, options);
  const int passes = static_cast<int>(options.micro_batches), count = 8 / group->getSize() / passes;
  for (int step = 0, tries = 0; step < 3; ++tries) {
    sgd.zero_grad();
    if (name == "one fails" && tries == 1) {
      if (rank == 0) loss_of(net, step, 0, count).backward();
      try {
        std::printf("%s rank %d: %s\n", name.c_str(), rank, kfac.step() ? "step" : "rejected");
      } catch (const dkfac::libtorch::Error& error) {
        std::printf("%s rank %d: %s\n", name.c_str(), rank, error.what());
      }
      continue;
    }
    for (int pass = 0; pass < passes; ++pass)
      loss_of(net, step, (rank * passes + pass) * count, count).div(passes).backward();
    if (name != "gradients are not averaged") average_gradients(net, group);
    if (name == "one ends" && step == 1 && rank == 1) std::quick_exit(3);
    if (!kfac.step()) throw dkfac::libtorch::Error("the step was rejected");
    ++step;
  }
  std::printf("%s:", name.c_str());
  for (const torch::Tensor& p : net.parameters())
    for (int i = 0; i < p.numel(); ++i) std::printf(" %.17g", p.view(-1)[i].item<double>());
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const int rank = std::atoi(argv[1]);
  const Group group = connect(rank, std::atoi(argv[2]), argv[3]);
  for (int i = 4; i < argc; ++i) try {
      train(argv[i], rank, group);
    } catch (const std::exception& error) {
      std::printf("%s rank %d failed: %s\n", argv[i], rank, error.what());
    }
}
