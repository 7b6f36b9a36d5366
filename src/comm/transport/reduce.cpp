#include "comm/transport/reduce.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "dkfac/core/half.h"

#include "comm/transport/sum_order.h"

namespace dkfac::comm {

namespace {

constexpr std::int64_t kBlock = 1024;  ///< Elements of a partial sum, which stay in the L1 cache.

/// Storage type T with the type in which it is accumulated.
template <class T>
struct Plain {
  using Wide = T;
  static Wide load(T x) { return x; }
  static T store(Wide x) { return x; }
};
/// Unsigned, because a sum of flags or counters may wrap but must stay defined.
struct Integer {
  using Wide = std::uint32_t;
  static Wide load(std::int32_t x) { return static_cast<Wide>(x); }
  static std::int32_t store(Wide x) { return static_cast<std::int32_t>(x); }
};
struct Half {
  using Wide = float;
  static Wide load(f16 x) { return to_float(x); }
  static f16 store(Wide x) { return to_f16(x); }
};
struct Brain {
  using Wide = float;
  static Wide load(bf16 x) { return to_float(x); }
  static bf16 store(Wide x) { return to_bf16(x); }
};

struct Sum {
  template <class W>
  static W apply(W a, W b) {
    return static_cast<W>(a + b);
  }
};
struct Max {
  template <class W>
  static W apply(W a, W b) {
    return (b > a || b != b) ? b : a;  // NaN is not equal to itself, and no comparison replaces it
  }
};

/// Places on the stack of sum_order().
std::size_t depth_of(const std::vector<SumStep>& order) {
  int depth = 0, most = 0;
  for (const SumStep& step : order) {
    most = std::max(most, depth += step.merges == 0 ? 1 : 0);
    depth -= std::max(step.merges - 1, 0);
  }
  return static_cast<std::size_t>(most);
}

template <class T, class Convert, class Op>
void reduce(std::span<const std::byte* const> inputs, std::int64_t count, std::byte* out) {
  const std::vector<SumStep> order = sum_order(static_cast<int>(inputs.size()));
  std::vector<std::array<typename Convert::Wide, kBlock>> stack(depth_of(order));
  for (std::int64_t first = 0; first < count; first += kBlock) {
    const auto n = static_cast<std::size_t>(std::min(kBlock, count - first));
    std::size_t top = 0;  // One above it.
    for (const SumStep& step : order) {
      const T* x = reinterpret_cast<const T*>(inputs[static_cast<std::size_t>(step.rank)]) + first;
      if (step.merges == 0) {
        auto& part = stack[top++];
        for (std::size_t i = 0; i < n; ++i) part[i] = Convert::load(x[i]);
        continue;
      }
      auto* sum = &stack[top - 1];
      for (std::size_t i = 0; i < n; ++i) (*sum)[i] = Op::apply((*sum)[i], Convert::load(x[i]));
      for (int m = 1; m < step.merges; ++m, --top) {
        const auto& upper = stack[top - 1];
        sum = &stack[top - 2];
        for (std::size_t i = 0; i < n; ++i) (*sum)[i] = Op::apply((*sum)[i], upper[i]);
      }
    }
    T* y = reinterpret_cast<T*>(out) + first;
    for (std::size_t i = 0; i < n; ++i) y[i] = Convert::store(stack[0][i]);
  }
}

template <class T, class Convert>
void add_half_to_sums(const std::byte* part, bool part_first, std::int64_t count, float* sums) {
  const T* x = reinterpret_cast<const T*>(part);
  for (std::int64_t i = 0; i < count; ++i) {
    const float wide = Convert::load(x[i]);
    sums[i] = part_first ? wide + sums[i] : sums[i] + wide;
  }
}

template <class T, class Convert>
void widen_half(const std::byte* parts, std::int64_t count, std::byte* sums) {
  const T* x = reinterpret_cast<const T*>(parts);
  auto* y = reinterpret_cast<float*>(sums);
  for (std::int64_t i = 0; i < count; ++i) y[i] = Convert::load(x[i]);
}

template <class T, class Convert>
void round_half(const std::byte* sums, std::int64_t count, std::byte* out) {
  const auto* x = reinterpret_cast<const float*>(sums);
  T* y = reinterpret_cast<T*>(out);
  for (std::int64_t i = 0; i < count; ++i) y[i] = Convert::store(x[i]);
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
      return op == ReduceOp::max ? reduce<double, Plain<double>, Max>(inputs, count, out)
                                 : reduce<double, Plain<double>, Sum>(inputs, count, out);
    case DType::f32:
      return op == ReduceOp::max ? reduce<float, Plain<float>, Max>(inputs, count, out)
                                 : reduce<float, Plain<float>, Sum>(inputs, count, out);
    case DType::bf16:
      return reduce<bf16, Brain, Sum>(inputs, count, out);
    case DType::f16:
      return reduce<f16, Half, Sum>(inputs, count, out);
    case DType::i32:
      return reduce<std::int32_t, Integer, Sum>(inputs, count, out);
  }
}

void add_to_sums(ReduceOp op, DType dtype, const std::byte* part, bool summed, bool part_first,
                 std::int64_t count, std::byte* sums) {
  auto* wide = reinterpret_cast<float*>(sums);
  if (dtype == DType::bf16 && !summed)
    return add_half_to_sums<bf16, Brain>(part, part_first, count, wide);
  if (dtype == DType::f16 && !summed)
    return add_half_to_sums<f16, Half>(part, part_first, count, wide);
  const std::array<const std::byte*, 2> inputs{part_first ? part : sums, part_first ? sums : part};
  reduce_in_order(op, sum_type(dtype), inputs, count, sums);
}

void widen_parts(DType dtype, const std::byte* parts, std::int64_t count, std::byte* sums) {
  if (dtype == DType::bf16) return widen_half<bf16, Brain>(parts, count, sums);
  if (dtype == DType::f16) return widen_half<f16, Half>(parts, count, sums);
  copy_plain(dtype, parts, count, sums);
}

void round_sums(DType dtype, const std::byte* sums, std::int64_t count, std::byte* out) {
  if (dtype == DType::bf16) return round_half<bf16, Brain>(sums, count, out);
  if (dtype == DType::f16) return round_half<f16, Half>(sums, count, out);
  copy_plain(dtype, sums, count, out);
}

}  // namespace dkfac::comm
