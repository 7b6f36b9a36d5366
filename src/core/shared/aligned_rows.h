#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "dkfac/core/device.h"
#include "dkfac/core/types.h"

namespace dkfac {

/// Alignment in bytes of the rows of an operand without which cuBLAS multiplies on tensor cores
/// slowly, or not at all.
inline constexpr std::int64_t kRowAlignment = 16;

/// Shape of the memory of Tensor::empty_aligned(): with the last extent rounded up on a device.
[[nodiscard]] inline Shape with_aligned_rows(const Shape& shape, DType dtype, Device device) {
  if (!device.is_cuda() || shape.ndim() == 0) return shape;
  std::array<std::int64_t, kMaxDims> dims{};
  const auto ndim = static_cast<std::size_t>(shape.ndim());
  for (std::size_t i = 0; i < ndim; ++i) dims[i] = shape[static_cast<int>(i)];
  const std::int64_t unit = kRowAlignment / static_cast<std::int64_t>(size_of(dtype));
  dims[ndim - 1] = (dims[ndim - 1] + unit - 1) / unit * unit;
  return Shape(std::span<const std::int64_t>(dims.data(), ndim));
}

}  // namespace dkfac
