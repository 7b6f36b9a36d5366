#pragma once

#include <array>
#include <cstdint>
#include <tuple>

#include "dkfac/core/tensor_view.h"

/// Iteration of elementwise loops and kernels over views of one shape and any strides.
namespace dkfac::detail {

/// Rows of N views of equal shape. Dimensions are merged where all views allow it, so contiguous
/// views are one long row. Elements are in row-major order; strides are in elements.
template <std::size_t N>
struct RowPlan {
  std::array<std::int64_t, kMaxDims> extent;
  std::array<Strides, N> stride;
  std::int64_t total = 1;

  [[nodiscard]] std::int64_t inner_stride(std::size_t view) const {
    return stride[view][kMaxDims - 1];
  }
  /// Whether every view has unit stride along its rows.
  [[nodiscard]] bool unit() const {
    for (std::size_t view = 0; view < N; ++view) {
      if (inner_stride(view) != 1) return false;
    }
    return true;
  }
};

template <class... Views>
[[nodiscard]] auto plan_rows(const Views&... views) {
  constexpr std::size_t kViews = sizeof...(Views);
  const std::array<const Strides*, kViews> given{&views.strides()...};
  const Shape& shape = std::get<0>(std::tie(views...)).shape();
  RowPlan<kViews> plan;
  plan.extent.fill(1);
  for (Strides& strides : plan.stride) strides = {0, 0, 0, 1};
  plan.total = shape.numel();

  std::size_t to = kMaxDims;
  for (int i = shape.ndim() - 1; i >= 0; --i) {
    const std::int64_t extent = shape[i];
    if (extent == 1) continue;
    const auto dim = static_cast<std::size_t>(i);
    bool merge = to < kMaxDims;
    for (std::size_t v = 0; merge && v < kViews; ++v) {
      merge = (*given[v])[dim] == plan.stride[v][to] * plan.extent[to];
    }
    if (merge) {
      plan.extent[to] *= extent;
      continue;
    }
    --to;
    plan.extent[to] = extent;
    for (std::size_t v = 0; v < kViews; ++v) plan.stride[v][to] = (*given[v])[dim];
  }
  return plan;
}

}  // namespace dkfac::detail
