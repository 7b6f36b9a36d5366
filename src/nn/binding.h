#pragma once

#include <cstdint>

#include "dkfac/core/tensor_view.h"
#include "dkfac/nn/layer.h"

namespace dkfac::nn {

/// Cuts views off the front of an arena.
template <class View>
class Cutter {
 public:
  explicit Cutter(View arena) : arena_(arena) {}
  View next(const Shape& shape) {
    const View view = arena_.slice(0, used_, shape.numel()).reshape(shape);
    used_ += shape.numel();
    return view;
  }

 private:
  View arena_;
  std::int64_t used_ = 0;
};

/// Numbers of elements that a layer and its children need.
struct ArenaSizes {
  std::int64_t parameters = 0;
  std::int64_t buffers = 0;
};
[[nodiscard]] ArenaSizes arena_sizes(Layer& root);

/// Points every parameter, gradient and buffer of `root` and its children into the flat arenas, in
/// forward order.
void bind(Layer& root, TensorView values, TensorView gradients, TensorView buffers);

/// Binds as bind(), with initial values in `values` and `buffers` on their device; layers write
/// theirs in host memory.
void bind_initialized(Context& ctx, Layer& root, TensorView values, TensorView gradients,
                      TensorView buffers, std::uint64_t seed);

/// Writes the initial values of every layer, all bound to host memory; layer i of the forward order
/// draws from Random(seed, i).
void initialize_all(Layer& root, std::uint64_t seed);

}  // namespace dkfac::nn
