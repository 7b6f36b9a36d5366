#pragma once

#include <cstdint>
#include <string>

#include "dkfac/nn/layer.h"

namespace dkfac::nn {

struct GradientCheckOptions {
  double step = 1e-5;  ///< h of the central difference (f(x+h) - f(x-h)) / 2h.
  int elements = 40;   ///< Elements probed per tensor; all when it has fewer.
  std::uint64_t seed = 1;
};

struct GradientCheckResult {
  double worst = 0;   ///< Largest |analytic - numeric| / max(1, largest |numeric|).
  std::string where;  ///< Element with the largest error, such as "input[12]" or "weight[3]".
  std::int64_t checked = 0;
};

/// Compares a layer's backward() with central differences of f = sum(c * forward(x)) for fixed
/// random c, over its input and its parameters, in training mode. The layer must be bound to f64
/// memory (see bind_standalone). x: f64, farther from kinks than the step. Host only: throws
/// InvalidArgument for a context of a device.
[[nodiscard]] GradientCheckResult check_gradients(Context& ctx, Layer& layer, ConstTensorView x,
                                                  GradientCheckOptions options = {});

/// Allocates the memory of a layer that belongs to no model: binds its parameters, gradients and
/// buffers on the device of ctx, and initialises them. Keep the result alive as long as the layer
/// is used.
[[nodiscard]] Tensor bind_standalone(Context& ctx, Layer& layer, DType dtype, std::uint64_t seed);

}  // namespace dkfac::nn
