#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "dkfac/comm/communicator.h"

#include "core/shared/element.h"

namespace dkfac::comm {

/// Type in which elements of type T are added, on hosts and devices. Unsigned for i32, because a
/// sum of flags or counters may wrap but must stay defined.
template <class T>
using SumOf =
    std::conditional_t<element::is_half<T>, float,
                       std::conditional_t<std::is_same_v<T, std::int32_t>, std::uint32_t, T>>;

/// out[i] = reduction over r of inputs[r][i], in the order of sum_order(): that of r up to 8 ranks,
/// and a tree beyond. This defines sums on every host backend. f64, f32 and i32 are summed in their
/// own type (i32 wraps around), bf16 and f16 in f32 and rounded once. max (f64, f32): a NaN on any
/// rank gives NaN. out may be one of the inputs.
void reduce_in_order(ReduceOp op, DType dtype, std::span<const std::byte* const> inputs,
                     std::int64_t count, std::byte* out);

/// Type of sums on their way along the tree: f32 of 16 bits, else the type of the parts.
[[nodiscard]] inline DType sum_type(DType dtype) {
  return size_of(dtype) == 2 ? DType::f32 : dtype;
}
/// sums[i] = part[i] + sums[i] if `part_first`, else sums[i] + part[i]; the same with max. `part`
/// is of sum_type(dtype) if it is `summed`, else of dtype.
void add_to_sums(ReduceOp op, DType dtype, const std::byte* part, bool summed, bool part_first,
                 std::int64_t count, std::byte* sums);
/// Converts from dtype to sum_type(dtype). The memory may be the same where the types are.
void widen_parts(DType dtype, const std::byte* parts, std::int64_t count, std::byte* sums);
/// Rounds from sum_type(dtype) to dtype. The memory may be the same where the types are.
void round_sums(DType dtype, const std::byte* sums, std::int64_t count, std::byte* out);

}  // namespace dkfac::comm
