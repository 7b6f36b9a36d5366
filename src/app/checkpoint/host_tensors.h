#pragma once

#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor.h"
#include "dkfac/nn/model.h"

namespace dkfac::app {

/// Parameters and buffers of a model in host memory: the model's own tensors, or a copy in pinned
/// memory if the model is on a device. Valid as long as the model.
class HostTensors {
 public:
  /// Synchronizes the host with the copy, if there is one.
  HostTensors(Context& ctx, nn::Model& model);
  [[nodiscard]] const std::vector<nn::NamedTensor>& all() const { return all_; }
  /// Copies the values back to the model, ordered before later work of ctx.
  void put_back();

 private:
  Context& ctx_;
  nn::Model& model_;
  Tensor parameters_, buffers_;  ///< Empty on the host.
  std::vector<nn::NamedTensor> all_;
};

}  // namespace dkfac::app
