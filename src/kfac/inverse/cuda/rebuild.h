#pragma once

#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"

#include "kfac/inverse/cuda/residual_check.h"

/// Enqueues the first stage of the robust inversion on the device, for factors in a table there:
/// computes inverses, checks them (residual_check.h) and commits those that pass. T: float or
/// double.
namespace dkfac::kfac::cuda {

/// Checks inverses of triangles and commits those that pass.
template <class T>
void commit_inverses(Context& ctx, const Candidates<T>& candidates);

/// Inverts `count` matrices of width d in one batch.
template <class T>
void rebuild_inverses(Context& ctx, const Block<T>* blocks, std::int64_t count, std::int64_t d);

/// Inverts a factor in low-rank form. average: the block's rows X[rows,d].
template <class T>
void rebuild_rows(Context& ctx, const Block<T>* block, ConstTensorView average);

/// Computes eigenvectors. average: the block's triangle of width d.
template <class T>
void rebuild_eigen(Context& ctx, const Block<T>* block, ConstTensorView average, std::int64_t d);

}  // namespace dkfac::kfac::cuda
