#pragma once

#include <string>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/random.h"
#include "dkfac/core/tensor.h"

/// Tensors for tests, and the messages of errors.
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

}  // namespace dkfac::testing
