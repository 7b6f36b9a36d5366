#pragma once

#include <cstddef>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor.h"
#include "dkfac/core/tensor_view.h"

namespace dkfac::nn {

/// A view of this shape over the memory of `tensor`, which is allocated anew only when it is too
/// small or of another dtype.
[[nodiscard]] TensorView view_in(Context& ctx, Tensor& tensor, const Shape& shape, DType dtype);

/// Memory that the layers of a model share for what lives shortly: gradients of activations, and
/// activations in evaluation. Blocks are counted by their users; the first step makes them, later
/// ones of the same shapes find them again. Views of other memory are ignored.
class Workspace {
 public:
  /// A free block as a tensor of this shape, uninitialised, with one user: the smallest that fits,
  /// else the largest one made larger, else a new one.
  [[nodiscard]] TensorView take(Context& ctx, const Shape& shape, DType dtype);
  void retain(ConstTensorView view);   ///< One user more of the block that begins here.
  void release(ConstTensorView view);  ///< One user less; without users it is free.
  void release_all();                  ///< After a step, which an exception may have ended.
  [[nodiscard]] std::size_t bytes() const;

 private:
  struct Block {
    Tensor memory;
    int users = 0;
  };
  [[nodiscard]] Block* find(ConstTensorView view);

  std::vector<Block> blocks_;
};

}  // namespace dkfac::nn
