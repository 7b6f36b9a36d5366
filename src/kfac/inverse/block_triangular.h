#pragma once

#include <algorithm>
#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"

/// Cholesky factors L that are applied by large products alone: triangular solves of libraries run
/// at a third to a half of the speed of their products. In a "blocked" L the diagonal blocks are
/// inverted, with zeros above their diagonals; what is above the blocks is never touched.
namespace dkfac::kfac {

/// Width of the diagonal blocks of a factor of width d: wide enough for fast products, narrow
/// enough that treating the inverted blocks as full ones costs little.
[[nodiscard]] std::int64_t solve_block(std::int64_t d);

/// L in the lower triangle of l[d,d] becomes blocked.
void invert_diagonal_blocks(Context& ctx, TensorView l);

/// f(first, count) for the diagonal blocks of a factor of width d, from the first to the last.
template <class F>
void for_blocks(std::int64_t d, F&& f) {
  const std::int64_t block = solve_block(d);
  for (std::int64_t k = 0; k < d; k += block) f(k, std::min(block, d - k));
}
/// From the last to the first.
template <class F>
void for_blocks_backward(std::int64_t d, F&& f) {
  const std::int64_t block = solve_block(d);
  for (std::int64_t k = (d - 1) / block * block; k >= 0; k -= block) f(k, std::min(block, d - k));
}

}  // namespace dkfac::kfac
