#pragma once

#include <algorithm>
#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"

/// Cholesky factors L that are applied by large matrix products alone: triangular solves of
/// libraries run at a third to a half of the speed of their products. In a "blocked" L the diagonal
/// blocks are inverted, with zeros above their diagonals; elements above the blocks are never
/// touched.
namespace dkfac::kfac {

/// Width of the diagonal blocks of a factor of width d: wide enough for fast products, narrow
/// enough that treating the triangular inverted blocks as full costs little.
[[nodiscard]] std::int64_t solve_block(std::int64_t d);

/// Converts L in the lower triangle of l[d,d] to the blocked form.
void invert_diagonal_blocks(Context& ctx, TensorView l);

/// Calls f(first, count) for the diagonal blocks of a factor of width d, from first to last.
template <class F>
void for_blocks(std::int64_t d, F&& f) {
  const std::int64_t block = solve_block(d);
  for (std::int64_t k = 0; k < d; k += block) f(k, std::min(block, d - k));
}
/// Calls f(first, count) for the blocks from last to first.
template <class F>
void for_blocks_backward(std::int64_t d, F&& f) {
  const std::int64_t block = solve_block(d);
  for (std::int64_t k = (d - 1) / block * block; k >= 0; k -= block) f(k, std::min(block, d - k));
}

}  // namespace dkfac::kfac
