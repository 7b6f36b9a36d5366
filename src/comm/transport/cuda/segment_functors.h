#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/transport/reduce.h"
#include "comm/transport/sum_order.h"
#include "core/shared/cuda/device_code.h"

/// Functors of collectives over the buffers of all ranks.
namespace dkfac::comm::cuda {

/// Maximal number of ranks, whose pointers are passed as kernel arguments.
inline constexpr int kMaxRanks = 128;
/// Partial sums that wait for another while that many ranks are added along the tree: log2.
inline constexpr int kMostBelow = 7;

/// outputs[k][i] = reduction of inputs[.][i] along the steps of sum_order(), in the wide type,
/// rounded once. An output may be one of the inputs.
template <class T, class Op>
struct ReduceInOrder {
  const T* inputs[kMaxRanks];  ///< In the order of the steps.
  T* outputs[kMaxRanks];
  std::uint8_t merges[kMaxRanks];  ///< Of the steps.
  int inputs_count, outputs_count;
  DKFAC_HD void operator()(std::int64_t i) const {
    const Op op;
    using Wide = SumOf<T>;
    Wide below[kMostBelow];  // What is on the stack below `top`.
    int count = 0;
    auto top = element::load<Wide>(inputs[0][i]);
    for (int r = 1; r < inputs_count; ++r) {
      const auto part = element::load<Wide>(inputs[r][i]);
      if (merges[r] == 0) {
        below[count++] = top;
        top = part;
        continue;
      }
      top = op(top, part);
      for (int m = 1; m < merges[r]; ++m) top = op(below[--count], top);
    }
    const T result = element::store<T>(top);
    for (int k = 0; k < outputs_count; ++k) outputs[k][i] = result;
  }
};
/// Sets the inputs, which are by rank.
template <class T, class Op>
void set_inputs(ReduceInOrder<T, Op>& kernel, std::span<const std::byte* const> inputs) {
  kernel.inputs_count = 0;
  for (const SumStep& step : sum_order(static_cast<int>(inputs.size()))) {
    kernel.inputs[kernel.inputs_count] =
        reinterpret_cast<const T*>(inputs[static_cast<std::size_t>(step.rank)]);
    kernel.merges[kernel.inputs_count++] = static_cast<std::uint8_t>(step.merges);
  }
}

/// (r, c): copies element c of segment r, if it has one, to its place in `out`. A segment already
/// in place is not written: peers may be reading it.
template <class Word>
struct GatherSegments {
  const Word* segments[kMaxRanks];
  std::int64_t offsets[kMaxRanks + 1];
  Word* out;
  DKFAC_HD void operator()(std::int64_t r, std::int64_t c) const {
    Word* to = out + offsets[r];
    if (c < offsets[r + 1] - offsets[r] && segments[r] != to) to[c] = segments[r][c];
  }
};

}  // namespace dkfac::comm::cuda
