#pragma once

#include <cstdint>

#include "kfac/inverse/block_triangular.h"

/// Where the blocks of columns of a lower triangle are that ranks invert together.
namespace dkfac::kfac {

/// A block of columns, from its diagonal block down: [rows(), width].
struct ColumnBlock {
  std::int64_t first = 0, width = 0, dim = 0;
  std::int64_t start = 0;  ///< Of its elements in a triangle that is stored block by block.
  std::int64_t own = 0;    ///< Columns of its rank in the blocks before it.
  int rank = 0;
  [[nodiscard]] std::int64_t rows() const { return dim - first; }
  [[nodiscard]] std::int64_t numel() const { return rows() * width; }
  [[nodiscard]] std::int64_t below() const { return rows() - width; }
};

/// Calls f(block) for the blocks of a matrix of width d in turn. Ranks get theirs in rounds, every
/// other one backwards, which evens out that blocks get shorter.
template <class F>
void for_columns(std::int64_t d, int ranks, F&& f) {
  std::int64_t start = 0, index = 0;
  const std::int64_t full = solve_block(d);
  for_blocks(d, [&](std::int64_t first, std::int64_t width) {
    const std::int64_t round = index / ranks, turn = index % ranks;
    const ColumnBlock block{.first = first,
                            .width = width,
                            .dim = d,
                            .start = start,
                            .own = round * full,
                            .rank = static_cast<int>(round % 2 == 0 ? turn : ranks - 1 - turn)};
    f(block);
    start += block.numel();
    ++index;
  });
}

}  // namespace dkfac::kfac
