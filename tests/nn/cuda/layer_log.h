#pragma once

#include <string>
#include <vector>

#include "dkfac/nn/layer.h"

#include "support/on_device.h"

namespace dkfac::testing {

/// Records the arguments of an observer's calls, in order.
class LayerLog final : public nn::LayerObserver {
 public:
  explicit LayerLog(Context& ctx) : ctx_(ctx) {}
  void on_forward(nn::Layer& layer, ConstTensorView x) override { add(layer, "x", x); }
  void on_backward(nn::Layer& layer, ConstTensorView dy) override { add(layer, "dy", dy); }
  void on_normalization(nn::Layer& layer, ConstTensorView x, ConstTensorView mean,
                        ConstTensorView inv_std, ConstTensorView dy) override {
    add(layer, "x", x);
    add(layer, "mean", mean);
    add(layer, "inv_std", inv_std);
    add(layer, "dy", dy);
  }
  [[nodiscard]] bool wants_normalization(const nn::Layer&) const override { return wants; }
  [[nodiscard]] bool takes_sample_gradients(const nn::Layer&) const override {
    return takes_samples;
  }
  void on_sample_gradients(nn::Layer& layer, ConstTensorView gradients) override {
    add(layer, "samples", gradients);
  }
  void on_gradients(nn::Layer& layer) override {
    for (const nn::Parameter& p : layer.parameters()) add(layer, p.name, p.grad);
  }
  bool wants = true, takes_samples = false;
  std::vector<std::string> names;
  std::vector<std::vector<double>> seen;

 private:
  void add(const nn::Layer& layer, const std::string& what, ConstTensorView view) {
    names.push_back(layer.name() + "." + what);
    seen.push_back(device_values(ctx_, view));
  }
  Context& ctx_;
};

}  // namespace dkfac::testing
