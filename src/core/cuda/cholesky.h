#pragma once

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"

namespace dkfac::cuda {

/// Reports bad pivots in info[count] after the factorization of a batch [count,d,d], by a check of
/// the factors' diagonals: libraries may accept a NaN as a pivot.
void report_bad_pivots(Context& ctx, ConstTensorView factor, TensorView info);

}  // namespace dkfac::cuda
