#pragma once

#include <cstdint>

#include "core/shared/element.h"

/// Element types of host loops, and results in host memory.
namespace dkfac::cpu {

using namespace element;  // NOLINT(google-build-using-namespace)

/// Writes a result of f64 arithmetic into out[0] of dtype f64 or f32.
inline void store_scalar(TensorView out, double value) {
  visit_computing(out.dtype(), [&]<class T>(Type<T>) { *out.data<T>() = static_cast<T>(value); });
}

/// counter[0] (f32) += count.
inline void add_count(TensorView counter, std::int64_t count) {
  *counter.data<float>() += static_cast<float>(count);
}

}  // namespace dkfac::cpu
