#include "nn/binding.h"

#include <limits>

#include "dkfac/core/ops.h"
#include "dkfac/core/tensor.h"

namespace dkfac::nn {
ArenaSizes arena_sizes(Layer& root) {
  ArenaSizes sizes;
  // Sizes that overflow 64 bits are rejected at allocation.
  const auto add = [](std::int64_t& sum, const Shape& shape) {
    if (__builtin_add_overflow(sum, shape.numel(), &sum))
      sum = std::numeric_limits<std::int64_t>::max();
  };
  root.visit([&](Layer& layer) {
    for (const Parameter& p : layer.parameters()) add(sizes.parameters, p.shape);
    for (const Buffer& buffer : layer.buffers()) add(sizes.buffers, buffer.shape);
  });
  return sizes;
}

void bind(Layer& root, TensorView values, TensorView gradients, TensorView buffers) {
  Cutter value(values), gradient(gradients), buffer(buffers);
  root.visit([&](Layer& layer) {
    for (Parameter& p : layer.parameters()) {
      p.value = value.next(p.shape);
      p.grad = gradient.next(p.shape);
    }
    for (Buffer& b : layer.buffers()) b.value = buffer.next(b.shape);
  });
}

void bind_initialized(Context& ctx, Layer& root, TensorView values, TensorView gradients,
                      TensorView buffers, std::uint64_t seed) {
  if (ctx.device().is_cuda()) {
    Context host;
    Tensor first_values = Tensor::zeros(host, values.shape(), values.dtype());
    Tensor first_buffers = Tensor::zeros(host, buffers.shape(), buffers.dtype());
    bind(root, first_values, first_values, first_buffers);
    initialize_all(root, seed);
    ops::copy(ctx, first_values, values);
    if (buffers.numel() > 0) ops::copy(ctx, first_buffers, buffers);
    bind(root, values, gradients, buffers);
    return;
  }
  bind(root, values, gradients, buffers);
  initialize_all(root, seed);
}

void initialize_all(Layer& root, std::uint64_t seed) {
  std::uint64_t place = 0;
  root.visit([&](Layer& layer) {
    // Containers have no values of their own, so each leaf is initialised exactly once.
    Random random(seed, place++);
    layer.initialize(random);
  });
}

}  // namespace dkfac::nn
