#include "nn/models/models.h"

namespace dkfac::nn {

std::unique_ptr<Layer> make_mlp(const ModelOptions& options) {
  std::vector<std::int64_t> widths = options.widths;
  if (widths.empty()) widths = {512, 512};
  auto net = std::make_unique<Sequential>();
  net->add<Flatten>("flatten");
  const std::int64_t last = add_dense(*net, options.input.numel(), widths, 1,
                                      options.activation.value_or(DenseActivation::relu), options);
  net->add<Linear>("fc" + std::to_string(widths.size() + 1), last, options.classes);
  add_logit_scale(*net, options);
  return net;
}

std::unique_ptr<Layer> make_autoencoder(const ModelOptions& options) {
  std::vector<std::int64_t> widths = options.widths;
  if (widths.empty()) widths = {400, 200, 100, 30};
  const std::int64_t size = options.input.numel(), code = widths.back();
  widths.pop_back();
  const bool celu = *options.switches.celu_alpha > 0;
  const DenseActivation activation =
      options.activation.value_or(celu ? DenseActivation::relu : DenseActivation::tanh);
  const std::size_t depth = widths.size();
  auto net = std::make_unique<Sequential>();
  net->add<Flatten>("flatten");
  const std::int64_t before = add_dense(*net, size, widths, 1, activation, options);
  net->add<Linear>("fc" + std::to_string(depth + 1), before, code);
  const std::vector<std::int64_t> back(widths.rbegin(), widths.rend());
  const std::int64_t last = add_dense(*net, code, back, depth + 2, activation, options);
  net->add<Linear>("fc" + std::to_string(2 * depth + 2), last, size);
  add_logit_scale(*net, options);
  return net;
}

}  // namespace dkfac::nn
