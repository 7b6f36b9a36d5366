#pragma once

#include <array>
#include <cstdint>

#include "core/row_plan.h"
#include "core/shared/parallel.h"

/// Iteration of elementwise loops over views of one shape and any strides.
namespace dkfac::cpu {

using detail::plan_rows;
using detail::RowPlan;

/// Calls f(offsets, count) for each piece of a row within elements [begin, end); `offsets` are
/// those of its first element in every view.
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

/// Runs for_segments() over all elements, on all threads.
template <std::size_t N, class F>
void for_all_segments(const RowPlan<N>& plan, F&& f) {
  parallel_ranges(plan.total, kGrain,
                  [&](std::int64_t begin, std::int64_t end) { for_segments(plan, begin, end, f); });
}

}  // namespace dkfac::cpu
