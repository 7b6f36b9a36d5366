#pragma once

#include "dkfac/core/context.h"
#include "dkfac/core/ops.h"

/// patch_gram of a 3x3 kernel with stride 1 and padding 1 without patches.
///
/// The block of c for kernel positions k, l is the sum over output positions p of x(p+k) x(p+l)', k
/// and l in {-1,0,1}^2 and x = 0 outside the image. Except for the border it depends on e = k - l
/// only: it is R(e) = sum over v of x(v+e) x(v)' without those v that no p reaches. For l = 1 these
/// are the v in the first row (column), for l = -1 in the last; there x(v+e) is inside the image
/// only if k = l in that coordinate. So 13 products R(e) of width C, correlations of the four
/// border lines with themselves, and the four corners (in two lines at once) give all 81 blocks.
namespace dkfac::cpu {

/// cpu::patch_gram without the corner of a bias, for a 3x3 kernel with stride 1 and padding 1 and
/// images of any size. by_onednn: self_correlate() computes the 13 products, where it applies.
void offset_gram(Context& ctx, const ops::PatchSpec& spec, double alpha, ConstTensorView x,
                 double beta, TensorView c, bool by_onednn = false);

}  // namespace dkfac::cpu
