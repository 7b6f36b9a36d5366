#pragma once

#include <deque>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "dkfac/nn/model.h"

#include "app/checkpoint/safetensors.h"

namespace dkfac::app {

/// Shapes of images that are flattened before a Linear, whose columns PyTorch orders by channel.
class FlattenedImages {
 public:
  explicit FlattenedImages(const nn::Model& model);
  /// Returns the images [n,h,w,c] whose channels PyTorch orders otherwise: the weights of a
  /// convolution, or what is flattened before the layer of this tensor; null for other tensors.
  [[nodiscard]] const Shape* permuted(const nn::NamedTensor& tensor) const;
  /// Writes values in PyTorch's layout, of the tensor's type, to the tensor in host memory.
  void from_torch(const nn::NamedTensor& tensor, std::span<const std::byte> values) const;

 private:
  std::map<std::string, Shape> images_;  ///< By the name of the Linear.
};
/// Returns the shape of a tensor in PyTorch's layout.
[[nodiscard]] Shape torch_shape(const nn::NamedTensor& tensor);

/// Tensors in PyTorch's layout, with the storage of the permuted ones.
struct TorchItems {
  std::vector<safetensors::Item> items;
  std::deque<std::vector<std::byte>> storage;
};
/// Returns the tensors that `load_state_dict` of the same network in PyTorch accepts: convolution
/// weights permuted, columns of a Linear on a flattened image permuted accordingly, and PyTorch's
/// counter of batches for each BatchNorm (`steps`).
[[nodiscard]] TorchItems to_torch(nn::Model& model, const std::int64_t& steps);

}  // namespace dkfac::app
