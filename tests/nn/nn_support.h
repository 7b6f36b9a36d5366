#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dkfac/core/tensor.h"
#include "dkfac/nn/gradient_check.h"
#include "dkfac/nn/layers.h"

#include "support/near.h"
#include "support/tensors.h"

namespace dkfac::testing {

/// A layer with memory of its own.
template <class T>
struct Standalone {
  template <class... Args>
  Standalone(Context& ctx, DType dtype, Args&&... args) : layer(std::forward<Args>(args)...) {
    layer.set_name("probe");
    memory = nn::bind_standalone(ctx, layer, dtype, 5);
  }
  T* operator->() { return &layer; }
  TensorView value(std::size_t i) { return layer.parameters().at(i).value; }
  TensorView grad(std::size_t i) { return layer.parameters().at(i).grad; }
  T layer;
  Tensor memory;
};

/// Largest error that central differences of step 1e-5 leave in f64 (E11).
inline constexpr double kGradientTolerance = 1e-7;

}  // namespace dkfac::testing
