#include "comm/transport/reduce.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "comm/transport/sum_order.h"
#include "core/shared/cuda/reduce_ops.h"

namespace dkfac::comm {

namespace {

constexpr std::int64_t kBlock = 1024;  ///< Elements of a partial sum, which stay in the L1 cache.

/// Places on the stack of sum_order().
std::size_t depth_of(const std::vector<SumStep>& order) {
  int depth = 0, most = 0;
  for (const SumStep& step : order) {
    most = std::max(most, depth += step.merges == 0 ? 1 : 0);
    depth -= std::max(step.merges - 1, 0);
  }
  return static_cast<std::size_t>(most);
}

template <class T, class Op = dkfac::cuda::Sum<SumOf<T>>>
void reduce(std::span<const std::byte* const> inputs, std::int64_t count, std::byte* out) {
  using Wide = SumOf<T>;
  const Op op;
  const std::vector<SumStep> order = sum_order(static_cast<int>(inputs.size()));
  std::vector<std::array<Wide, kBlock>> stack(depth_of(order));
  for (std::int64_t first = 0; first < count; first += kBlock) {
    const auto n = static_cast<std::size_t>(std::min(kBlock, count - first));
    std::size_t top = 0;  // One above it.
    for (const SumStep& step : order) {
      const T* x = reinterpret_cast<const T*>(inputs[static_cast<std::size_t>(step.rank)]) + first;
      if (step.merges == 0) {
        auto& part = stack[top++];
        for (std::size_t i = 0; i < n; ++i) part[i] = element::load<Wide>(x[i]);
        continue;
      }
      auto* sum = &stack[top - 1];
      for (std::size_t i = 0; i < n; ++i) (*sum)[i] = op((*sum)[i], element::load<Wide>(x[i]));
      for (int m = 1; m < step.merges; ++m, --top) {
        const auto& upper = stack[top - 1];
        sum = &stack[top - 2];
        for (std::size_t i = 0; i < n; ++i) (*sum)[i] = op((*sum)[i], upper[i]);
      }
    }
    T* y = reinterpret_cast<T*>(out) + first;
    for (std::size_t i = 0; i < n; ++i) y[i] = element::store<T>(stack[0][i]);
  }
}

/// Calls body(Type<T>) for a 16-bit type; returns whether it is one.
template <class Body>
bool with_half(DType dtype, Body body) {
  if (dtype == DType::bf16) body(element::Type<bf16>{});
  if (dtype == DType::f16) body(element::Type<f16>{});
  return size_of(dtype) == 2;
}

void copy_plain(DType dtype, const std::byte* from, std::int64_t count, std::byte* to) {
  if (from != to && count > 0)
    std::memcpy(to, from, static_cast<std::size_t>(count) * size_of(dtype));
}

}  // namespace

void reduce_in_order(ReduceOp op, DType dtype, std::span<const std::byte* const> inputs,
                     std::int64_t count, std::byte* out) {
  switch (dtype) {
    case DType::f64:
      return op == ReduceOp::max ? reduce<double, dkfac::cuda::Max<double>>(inputs, count, out)
                                 : reduce<double>(inputs, count, out);
    case DType::f32:
      return op == ReduceOp::max ? reduce<float, dkfac::cuda::Max<float>>(inputs, count, out)
                                 : reduce<float>(inputs, count, out);
    case DType::bf16:
      return reduce<bf16>(inputs, count, out);
    case DType::f16:
      return reduce<f16>(inputs, count, out);
    case DType::i32:
      return reduce<std::int32_t>(inputs, count, out);
  }
}

void add_to_sums(ReduceOp op, DType dtype, const std::byte* part, bool summed, bool part_first,
                 std::int64_t count, std::byte* sums) {
  const auto add = [&]<class T>(element::Type<T>) {
    const T* x = reinterpret_cast<const T*>(part);
    auto* wide = reinterpret_cast<float*>(sums);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto one = element::load<float>(x[i]);
      wide[i] = part_first ? one + wide[i] : wide[i] + one;
    }
  };
  if (!summed && with_half(dtype, add)) return;
  const std::array<const std::byte*, 2> inputs{part_first ? part : sums, part_first ? sums : part};
  reduce_in_order(op, sum_type(dtype), inputs, count, sums);
}

void widen_parts(DType dtype, const std::byte* parts, std::int64_t count, std::byte* sums) {
  const auto widen = [&]<class T>(element::Type<T>) {
    const T* x = reinterpret_cast<const T*>(parts);
    auto* y = reinterpret_cast<float*>(sums);
    for (std::int64_t i = 0; i < count; ++i) y[i] = element::load<float>(x[i]);
  };
  if (!with_half(dtype, widen)) copy_plain(dtype, parts, count, sums);
}

void round_sums(DType dtype, const std::byte* sums, std::int64_t count, std::byte* out) {
  const auto round = [&]<class T>(element::Type<T>) {
    const auto* x = reinterpret_cast<const float*>(sums);
    T* y = reinterpret_cast<T*>(out);
    for (std::int64_t i = 0; i < count; ++i) y[i] = element::store<T>(x[i]);
  };
  if (!with_half(dtype, round)) copy_plain(dtype, sums, count, out);
}

}  // namespace dkfac::comm
