#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor.h"
#include "dkfac/core/tensor_view.h"

namespace dkfac::nn {

/// How often a tensor or block of this process was given back for a larger one that could not be
/// had. Apart from that memory only grows: as long as this number and the bytes are the same, so
/// are the addresses.
[[nodiscard]] std::int64_t memory_losses();

/// A view of this shape over the memory of `tensor`, which is allocated anew only when it is too
/// small or of another dtype.
[[nodiscard]] TensorView view_in(Context& ctx, Tensor& tensor, const Shape& shape, DType dtype);

/// Memory that the layers of a model share for what lives shortly: gradients of activations, and
/// activations in evaluation. The first step makes the blocks, later ones of the same shapes find
/// them again. Views of other memory are ignored.
class Workspace {
 public:
  /// A free block as a tensor of this shape, uninitialised: the smallest that fits, else the
  /// largest one made larger, else a new one.
  [[nodiscard]] TensorView take(Context& ctx, const Shape& shape, DType dtype);
  /// The block that begins where `view` does, seen as `view` is; empty when there is none.
  [[nodiscard]] TensorView writable(ConstTensorView view);
  void release(ConstTensorView view);  ///< The block that begins here is free.
  void release_all();                  ///< After a pass, which an exception may have ended.
  [[nodiscard]] std::size_t bytes() const;

 private:
  struct Block {
    Tensor memory;
    bool taken = false;
  };
  [[nodiscard]] Block* find(ConstTensorView view);

  std::vector<Block> blocks_;
};

}  // namespace dkfac::nn
