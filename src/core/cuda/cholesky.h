#pragma once

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"

namespace dkfac::cuda {

/// After a factorization of a batch [count,d,d] with status info[count]: libraries promise nothing
/// about a NaN, which may pass for a pivot, so that the factor's diagonal is looked at.
void report_bad_pivots(Context& ctx, ConstTensorView factor, TensorView info);

}  // namespace dkfac::cuda
