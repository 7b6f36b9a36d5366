#include "comm/transport/reduce.h"

#include <algorithm>
#include <array>

#include "dkfac/core/half.h"

namespace dkfac::comm {

namespace {

constexpr std::int64_t kBlock = 1024;  ///< Elements whose partial sums stay in the L1 cache.

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

template <class T, class Convert, class Op>
void reduce(std::span<const std::byte* const> inputs, std::int64_t count, std::byte* out) {
  std::array<typename Convert::Wide, kBlock> partial;
  for (std::int64_t first = 0; first < count; first += kBlock) {
    const auto n = static_cast<std::size_t>(std::min(kBlock, count - first));
    const auto at = [first](const std::byte* bytes) {
      return reinterpret_cast<const T*>(bytes) + first;
    };
    const T* x = at(inputs[0]);
    for (std::size_t i = 0; i < n; ++i) partial[i] = Convert::load(x[i]);
    for (const std::byte* input : inputs.subspan(1)) {
      x = at(input);
      for (std::size_t i = 0; i < n; ++i) partial[i] = Op::apply(partial[i], Convert::load(x[i]));
    }
    T* y = reinterpret_cast<T*>(out) + first;
    for (std::size_t i = 0; i < n; ++i) y[i] = Convert::store(partial[i]);
  }
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

}  // namespace dkfac::comm
