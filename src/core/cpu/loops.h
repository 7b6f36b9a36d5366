#pragma once

#include <array>
#include <cstdint>
#include <tuple>

#include "dkfac/core/parallel.h"
#include "dkfac/core/tensor_view.h"

/// How elementwise loops walk over views of one shape and any strides.
namespace dkfac::cpu {

/// N views of equal shape, with dimensions merged where all of them allow it, so that contiguous
/// views are one long row. Elements count in row-major order; strides are in elements.
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

  std::size_t slot = kMaxDims;
  for (int i = shape.ndim() - 1; i >= 0; --i) {
    const std::int64_t extent = shape[i];
    if (extent == 1) continue;
    const auto dim = static_cast<std::size_t>(i);
    bool merge = slot < kMaxDims;
    for (std::size_t v = 0; merge && v < kViews; ++v) {
      merge = (*given[v])[dim] == plan.stride[v][slot] * plan.extent[slot];
    }
    if (merge) {
      plan.extent[slot] *= extent;
      continue;
    }
    --slot;
    plan.extent[slot] = extent;
    for (std::size_t v = 0; v < kViews; ++v) plan.stride[v][slot] = (*given[v])[dim];
  }
  return plan;
}

/// f(offsets, count) for each piece of a row within elements [begin, end): offsets of the piece's
/// first element in every view.
template <std::size_t N, class F>
void for_segments(const RowPlan<N>& plan, std::int64_t begin, std::int64_t end, F&& f) {
  if (begin >= end) return;
  const std::int64_t inner = plan.extent[kMaxDims - 1];
  std::int64_t column = begin % inner;
  std::array<std::int64_t, kMaxDims - 1> index{};
  for (std::size_t i = index.size(), row = static_cast<std::size_t>(begin / inner); i-- > 0;) {
    const auto extent = static_cast<std::size_t>(plan.extent[i]);
    index[i] = static_cast<std::int64_t>(row % extent);
    row /= extent;
  }
  while (begin < end) {
    const std::int64_t count = std::min(inner - column, end - begin);
    std::array<std::int64_t, N> offsets;
    for (std::size_t v = 0; v < N; ++v) {
      offsets[v] = column * plan.stride[v][kMaxDims - 1];
      for (std::size_t i = 0; i < index.size(); ++i) offsets[v] += index[i] * plan.stride[v][i];
    }
    f(offsets, count);
    begin += count;
    column = 0;
    for (std::size_t i = index.size(); i-- > 0 && ++index[i] == plan.extent[i];) index[i] = 0;
  }
}

/// for_segments over all elements, on all threads.
template <std::size_t N, class F>
void for_all_segments(const RowPlan<N>& plan, F&& f) {
  parallel_ranges(plan.total, kGrain,
                  [&](std::int64_t begin, std::int64_t end) { for_segments(plan, begin, end, f); });
}

}  // namespace dkfac::cpu
