#include "nn/models/models.h"

namespace dkfac::nn {

std::unique_ptr<Layer> make_mlp(const ModelOptions& options) {
  constexpr std::int64_t kHidden = 512;
  auto net = std::make_unique<Sequential>();
  net->add<Flatten>("flatten")
      .add<Linear>("fc1", options.input.numel(), kHidden)
      .add<Relu>("relu1")
      .add<Linear>("fc2", kHidden, kHidden)
      .add<Relu>("relu2")
      .add<Linear>("fc3", kHidden, options.classes);
  return net;
}

}  // namespace dkfac::nn
