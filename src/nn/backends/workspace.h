#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor.h"
#include "dkfac/core/tensor_view.h"

namespace dkfac::nn {

/// Counts how often the process released a tensor or block for a larger one whose allocation then
/// failed. Otherwise memory only grows: while this count and the bytes are unchanged, so are the
/// addresses.
[[nodiscard]] std::int64_t memory_losses();

/// Returns a view of this shape over the memory of `tensor`, which is reallocated only when it is
/// too small or of another dtype.
[[nodiscard]] TensorView view_in(Context& ctx, Tensor& tensor, const Shape& shape, DType dtype);

/// Memory that the layers of a model share for short-lived tensors: gradients of activations, and
/// activations in evaluation. The first step allocates the blocks; later ones of the same shapes
/// reuse them. Views of other memory are ignored.
class Workspace {
 public:
  /// Returns a free block as a tensor of this shape, uninitialised: the smallest that fits, else
  /// the largest one enlarged, else a new one.
  [[nodiscard]] TensorView take(Context& ctx, const Shape& shape, DType dtype);
  /// Returns the block that begins where `view` does, with the shape of `view`; empty when there is
  /// none.
  [[nodiscard]] TensorView writable(ConstTensorView view);
  void release(ConstTensorView view);  ///< Frees the block that begins here.
  void release_all();                  ///< Frees all blocks after a pass, which may have ended with
                                       ///< an exception.
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
