#include "nn/models/models.h"

namespace dkfac::nn {

std::unique_ptr<Layer> make_mlp(const ModelOptions& options) {
  constexpr std::int64_t kHidden = 512;
  const std::string act = activation_of(options).kind == ActivationKind::celu ? "celu" : "relu";
  auto net = std::make_unique<Sequential>();
  net->add<Flatten>("flatten").add<Linear>("fc1", options.input.numel(), kHidden);
  add_activation(*net, act + "1", options);
  net->add<Linear>("fc2", kHidden, kHidden);
  add_activation(*net, act + "2", options);
  net->add<Linear>("fc3", kHidden, options.classes);
  add_logit_scale(*net, options);
  return net;
}

}  // namespace dkfac::nn
