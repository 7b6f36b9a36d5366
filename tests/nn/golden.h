#pragma once

#include <fstream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "dkfac/nn/layers.h"
#include "dkfac/nn/model.h"

#include "nn/nn_support.h"

namespace dkfac::testing {

/// Tensors by name, as tests/golden/make_golden.py wrote them.
class GoldenFile {
 public:
  explicit GoldenFile(const std::string& path) {
    std::ifstream in(path);
    if (!in) throw std::runtime_error("[golden] cannot read " + path);
    std::string word, name;
    while (in >> word) {
      if (word == "tensor") {
        in >> name;
        std::getline(in, word);  // The shape, which the reader already has.
        tensors_[name];
      } else {
        tensors_.at(name).push_back(std::stod(word));
      }
    }
  }
  [[nodiscard]] const std::vector<double>& at(const std::string& name) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) throw std::runtime_error("[golden] there is no " + name);
    return found->second;
  }

 private:
  std::map<std::string, std::vector<double>> tensors_;
};

inline constexpr std::int64_t kGoldenSamples = 6, kGoldenClasses = 5;
inline constexpr int kGoldenSteps = 10;

/// The residual block of the generator's network.
inline std::unique_ptr<nn::Layer> golden_block(std::int64_t in, std::int64_t out) {
  const auto conv = [](int kernel, int stride) {
    return nn::ConvOptions::square(kernel, {.stride = stride, .pad = kernel / 2, .bias = false});
  };
  const nn::Activation relu{nn::ActivationKind::relu};
  auto body = std::make_unique<nn::Sequential>(), shortcut = std::make_unique<nn::Sequential>();
  body->add<nn::Conv2d>("conv1", in, out, conv(3, 2))
      .add<nn::BatchNorm2d>("bn1", out, nn::BatchNormOptions{.activation = relu})
      .add<nn::Conv2d>("conv2", out, out, conv(3, 1))
      .add<nn::BatchNorm2d>("bn2", out);
  shortcut->add<nn::Conv2d>("0", in, out, conv(1, 2)).add<nn::BatchNorm2d>("1", out);
  return std::make_unique<nn::Residual>(
      std::move(body), std::move(shortcut),
      nn::ResidualOptions{.activation = relu, .body = "", .shortcut = "downsample"});
}

/// The generator's network with its weights.
inline std::unique_ptr<nn::Model> golden_model(Context& ctx, const GoldenFile& golden,
                                               DType dtype) {
  const nn::ConvOptions dilated{
      .window =
          {.kernel_h = 3, .kernel_w = 3, .pad_h = 2, .pad_w = 2, .dilation_h = 2, .dilation_w = 2},
      .groups = 3};
  auto net = std::make_unique<nn::Sequential>();
  net->add<nn::Conv2d>("conv1", 3, 8, nn::ConvOptions::square(3, {.pad = 1}))
      .add<nn::BatchNorm2d>("bn1", 8)
      .add<nn::Relu>("relu")
      .add<nn::Pool2d>("pool", nn::PoolKind::max, 2, 2)
      .add("block", golden_block(8, 12))
      .add<nn::Conv2d>("conv2", 12, 12, dilated)
      .add<nn::Celu>("celu", 0.3)
      .add<nn::GlobalPool>("mean", nn::PoolKind::average)
      .add<nn::Linear>("fc", 12, kGoldenClasses);
  auto model =
      std::make_unique<nn::Model>(ctx, "golden", std::move(net), Shape{12, 10, 3}, dtype, 1);
  for (const nn::NamedTensor& t : model->named_tensors()) {
    const std::vector<double>& initial = golden.at("initial." + t.name);
    ops::cast(ctx, view_of(initial.data(), t.view.shape()), t.view);
  }
  return model;
}

inline Tensor golden_images(Context& ctx, const GoldenFile& golden, int batch, DType dtype) {
  Tensor x = Tensor::empty(ctx, Shape{kGoldenSamples, 12, 10, 3}, dtype);
  ops::cast(ctx, view_of(golden.at("images." + std::to_string(batch)).data(), x.shape()), x);
  return x;
}

inline std::vector<std::int32_t> golden_labels(const GoldenFile& golden, int batch) {
  const std::vector<double>& labels = golden.at("labels." + std::to_string(batch));
  return {labels.begin(), labels.end()};
}

}  // namespace dkfac::testing
