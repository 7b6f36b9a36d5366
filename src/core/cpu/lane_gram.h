#pragma once

#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/ops.h"

namespace dkfac::cpu {

/// Whether lane_gram() is expected to be faster than one product per group; d: width of a group
/// with a bias.
[[nodiscard]] bool prefers_lanes(std::int64_t groups, std::int64_t d);
/// patch_gram of c[groups,d,d] for many small groups, in one pass over x. The same element of
/// adjacent groups fills a vector, so every group is a lane of the same sums.
void lane_gram(Context& ctx, const ops::PatchSpec& spec, double alpha, ConstTensorView x,
               double beta, TensorView c);

}  // namespace dkfac::cpu
