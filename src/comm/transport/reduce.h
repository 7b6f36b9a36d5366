#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "dkfac/comm/communicator.h"

namespace dkfac::comm {

/// out[i] = reduction over r of inputs[r][i], in the order of r; this defines sums on every host
/// backend. f64, f32 and i32 are summed in their own type (i32 wraps around), bf16 and f16 in f32
/// and rounded once. max (f64, f32): a NaN on any rank gives NaN. out may be one of the inputs.
void reduce_in_order(ReduceOp op, DType dtype, std::span<const std::byte* const> inputs,
                     std::int64_t count, std::byte* out);

}  // namespace dkfac::comm
