#pragma once

#include <deque>
#include <vector>

#include "dkfac/nn/model.h"

#include "app/checkpoint/safetensors.h"

namespace dkfac::app {

/// How weights are laid out in an exported file.
enum class WeightLayout : std::uint8_t {
  native,  ///< As here: convolutions [out, kernel_h, kernel_w, in], activations [n, h, w, c].
  torch    ///< As in PyTorch: [out, in, kernel_h, kernel_w], activations [n, c, h, w].
};

/// Tensors in PyTorch's layout, and the memory of those that had to be permuted.
struct TorchItems {
  std::vector<safetensors::Item> items;
  std::deque<std::vector<std::byte>> storage;
};
/// What `load_state_dict` of the same network in PyTorch takes: weights of convolutions permuted,
/// columns of a Linear that sees a flattened image permuted with it, and the counter of batches
/// that each BatchNorm has there (`steps`).
[[nodiscard]] TorchItems to_torch(nn::Model& model, const std::int64_t& steps);

}  // namespace dkfac::app
