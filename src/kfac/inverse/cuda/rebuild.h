#pragma once

#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"

#include "kfac/inverse/cuda/blocks.h"

/// The first stage of the ladder on the device, for factors whose blocks stand in a table there:
/// enqueues making, judging (check_residuals.h) and committing of inverses. T: float or double.
namespace dkfac::kfac::cuda {

/// `count` matrices of width d, all at once.
template <class T>
void rebuild_inverses(Context& ctx, const Block<T>* blocks, std::int64_t count, std::int64_t d);

/// Low-rank form. average: the block's rows X[rows,d].
template <class T>
void rebuild_rows(Context& ctx, const Block<T>* block, ConstTensorView average);

/// Eigenvectors. average: the block's triangle; width d.
template <class T>
void rebuild_eigen(Context& ctx, const Block<T>* block, ConstTensorView average, std::int64_t d);

}  // namespace dkfac::kfac::cuda
