#pragma once

#include "dkfac/core/context.h"
#include "dkfac/core/ops.h"

namespace dkfac::cpu {

/// Whether the build has self_correlate().
[[nodiscard]] bool has_self_correlation() noexcept;

/// blocks[13 * C, C] = sum over v of x(v+e) x(v)' with x = 0 outside of each image, for the offsets
/// e = (0, 0..2), (1, -2..2), (2, -2..2), one block below the other. x[n,h,w,C], f32, contiguous.
///
/// This is the gradient of the 5x5 weights (padding 2) of a convolution whose input and output
/// gradient both equal x, which oneDNN computes with blocked kernels on all threads. It has one
/// running f32 sum per element; sub-batches of about 8192 pixels keep these short.
void self_correlate(Context& ctx, const ops::PatchSpec& spec, ConstTensorView x, TensorView blocks);

}  // namespace dkfac::cpu
