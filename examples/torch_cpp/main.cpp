// K-FAC in a LibTorch program. Lines that K-FAC adds are marked [+]. A small convolutional network
// learns on which side of a 12x12 image of noise a faint vertical bar lies, from the same weights
// and batches: with SGD at several rates, and with SGD behind K-FAC. It fails unless K-FAC ends
// with a clearly lower loss.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <limits>
#include <memory>

#include <torch/torch.h>

#include "dkfac/torch.hpp"  // [+]

namespace {

struct NetImpl : torch::nn::Module {
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(1, 8, 3).stride(2)};
  torch::nn::BatchNorm2d norm{8};
  torch::nn::Linear hidden{8 * 5 * 5, 32}, out{32, 2};

  NetImpl() {
    register_module("conv", conv);
    register_module("norm", norm);
    register_module("hidden", hidden);
    register_module("out", out);
  }
  torch::Tensor forward(const torch::Tensor& images) {
    const torch::Tensor features = torch::relu(norm(conv(images)));
    return out(torch::tanh(hidden(features.flatten(1))));
  }
};
TORCH_MODULE(Net);

struct Data {
  torch::Tensor images, labels;
};

Data make_data(int n) {
  Data data{torch::randn({n, 1, 12, 12}), torch::randint(2, {n}, torch::kLong)};
  for (int i = 0; i < n; ++i) {
    const auto column = data.labels[i].item<std::int64_t>() * 6 + i % 6;
    data.images[i].select(2, column) += 1.5;
  }
  return data;
}

double train(const Data& data, double lr, bool with_kfac) {
  torch::manual_seed(1);
  Net model;
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(lr).momentum(0.9));
  dkfac::libtorch::Options options;         // [+]
  options.damping = 0.03;                   // [+]
  options.statistics_interval = 1;          // [+]
  options.inverse_interval = 5;             // [+]
  options.step_length = DKFAC_LENGTH_NONE;  // [+] The natural gradient itself: a rate of its own.
  std::unique_ptr<dkfac::libtorch::Kfac> kfac;
  if (with_kfac) kfac = std::make_unique<dkfac::libtorch::Kfac>(*model, optimizer, options);  // [+]
  double loss_value = 0;
  for (int step = 0; step < 60; ++step) {
    const auto batch = torch::indexing::Slice(step % 4 * 64, (step % 4 + 1) * 64);
    optimizer.zero_grad();
    const torch::Tensor loss = torch::nn::functional::cross_entropy(
        model->forward(data.images.index({batch})), data.labels.index({batch}));
    loss.backward();
    if (with_kfac)
      kfac->step();  // [+] in place of optimizer.step()
    else
      optimizer.step();
    if (step >= 56) loss_value += loss.item<double>() / 4;
  }
  if (with_kfac) std::printf("%s", kfac->describe().c_str());
  return loss_value;
}

}  // namespace

int main() try {
  torch::manual_seed(7);
  const Data data = make_data(256);
  double best = std::numeric_limits<double>::infinity();
  for (const double lr : {0.003, 0.01, 0.03, 0.1}) {
    const double loss = train(data, lr, false);
    std::printf("SGD    lr %-5g  loss of the last epoch %.2e\n", lr, loss);
    best = std::min(best, loss);
  }
  const double with_kfac = train(data, 0.03, true);
  std::printf("K-FAC  lr 0.03   loss of the last epoch %.2e\n", with_kfac);
  return with_kfac < 0.5 * best ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
