#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "dkfac/core/error.h"
#include "dkfac/core/types.h"

namespace dkfac::nn {

/// Shape [n, sample...] for a sample [features] or [h, w, c].
[[nodiscard]] inline Shape batch_shape(std::int64_t n, const Shape& sample) {
  DKFAC_CHECK(sample.ndim() >= 1 && sample.ndim() < kMaxDims, "[model] a sample of shape ", sample,
              " is not [features], [positions, features] or [h, w, c]");
  std::array<std::int64_t, kMaxDims> dims{n};
  for (int i = 0; i < sample.ndim(); ++i) {
    DKFAC_CHECK(sample[i] > 0, "[model] a sample of shape ", sample, " has no elements");
    dims[static_cast<std::size_t>(i) + 1] = sample[i];
  }
  return Shape(std::span(dims).first(static_cast<std::size_t>(sample.ndim()) + 1));
}

}  // namespace dkfac::nn
