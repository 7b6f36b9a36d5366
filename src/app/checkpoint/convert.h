#pragma once

#include <deque>
#include <vector>

#include "dkfac/nn/model.h"

#include "app/checkpoint/safetensors.h"

namespace dkfac::app {

/// Memory layout of weights in an exported file.
enum class WeightLayout : std::uint8_t {
  native,  ///< dkfac: convolutions [out, kernel_h, kernel_w, in], activations [n, h, w, c].
  torch    ///< PyTorch: convolutions [out, in, kernel_h, kernel_w], activations [n, c, h, w].
};

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
