#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dkfac/core/random.h"
#include "dkfac/core/tensor.h"
#include "dkfac/nn/gradient_check.h"
#include "dkfac/nn/layers.h"

#include "support/near.h"

namespace dkfac::testing {

/// Uniform in [lo, hi).
inline Tensor random_tensor(Context& ctx, Shape shape, DType dtype, std::uint64_t seed,
                            double lo = -1, double hi = 1) {
  Tensor x = Tensor::empty(ctx, shape, dtype);
  Random random(seed, 77);
  fill_uniform(x, lo, hi, random);
  return x;
}

/// The same numbers, rounded.
inline Tensor cast_to(Context& ctx, ConstTensorView x, DType dtype) {
  Tensor out = Tensor::empty(ctx, x.shape(), dtype);
  ops::cast(ctx, x, out);
  return out;
}
inline Tensor to_f32(Context& ctx, ConstTensorView x) { return cast_to(ctx, x, DType::f32); }

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

/// The message of the InvalidArgument that `body` throws; empty when it throws none.
template <class Body>
std::string message_of(Body&& body) {
  try {
    body();
  } catch (const InvalidArgument& e) {
    return e.what();
  }
  return {};
}

inline ::testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "'" << text << "' does not contain '" << part << "'";
}

/// Largest error that central differences of step 1e-5 leave in f64 (E11).
inline constexpr double kGradientTolerance = 1e-7;

}  // namespace dkfac::testing
