#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/shared/cuda/device_code.h"
#include "core/shared/cuda/index.h"

/// Traversal of x[groups,rows,packs] by kernels, where a pack is some neighbouring channels. It
/// depends only on shapes.
namespace dkfac::nn::cuda {

#ifdef __CUDA_ARCH__
#define DKFAC_UNROLL _Pragma("unroll")
#else
#define DKFAC_UNROLL
#endif

inline constexpr int kColumnThreads = 256;

/// Blocks for sums over rows. A block has `lanes` packs side by side and `depth` rows below each
/// other, so that neighbouring threads read neighbouring memory and few channels still fill a
/// block. Each thread sums `run` rows, `depth` apart, and the block sums the results of its
/// threads.
struct ColumnBlocks {
  std::int64_t groups, rows, packs;
  std::int64_t lanes, tiles;  ///< tiles * lanes >= packs.
  std::int64_t depth;         ///< lanes * depth <= kColumnThreads
  std::int64_t run, chunks;   ///< chunks * depth * run >= rows.

  /// Blocks of as many rows as are summed in the type of the data; of fewer rows where that would
  /// leave most of a device idle.
  static ColumnBlocks parts(std::int64_t groups, std::int64_t rows, std::int64_t packs) {
    constexpr std::int64_t kMost = 64, kLeast = 16, kEnoughBlocks = 1024;
    ColumnBlocks b(groups, rows, packs, 32);
    for (b.run = kMost;; b.run /= 2) {
      b.chunks = (rows + b.depth * b.run - 1) / (b.depth * b.run);
      if (b.run == kLeast || b.blocks() >= kEnoughBlocks) return b;
    }
  }
  /// One block for all rows, for sums in f64.
  static ColumnBlocks whole(std::int64_t groups, std::int64_t rows, std::int64_t packs,
                            std::int64_t lanes) {
    ColumnBlocks b(groups, rows, packs, lanes);
    b.run = (rows + b.depth - 1) / b.depth;
    b.chunks = 1;
    return b;
  }

  [[nodiscard]] DKFAC_HD std::int64_t blocks() const { return groups * chunks * tiles; }

  struct Place {
    std::int64_t group, chunk, pack;
    std::int64_t row;    ///< First row of the thread; the others are `depth` apart.
    std::int64_t depth;  ///< Row number of the thread within the block.
    std::int64_t count;  ///< Number of rows; 0 for a thread without work.
  };
  [[nodiscard]] DKFAC_HD Place place(std::int64_t block, int thread) const {
    using dkfac::cuda::quotient;
    const std::int64_t part = quotient(block, tiles), tile = block - part * tiles;
    Place at{};
    at.group = quotient(part, chunks);
    at.chunk = part - at.group * chunks;
    at.depth = quotient(thread, lanes);
    at.pack = tile * lanes + thread - at.depth * lanes;
    at.row = at.chunk * depth * run + at.depth;
    if (at.depth >= depth || at.pack >= packs || at.row >= rows) return at;
    const std::int64_t left = quotient(rows - at.row + depth - 1, depth);
    at.count = left < run ? left : run;
    return at;
  }

 private:
  ColumnBlocks(std::int64_t g, std::int64_t r, std::int64_t p, std::int64_t most_lanes)
      : groups(g), rows(r), packs(p) {
    tiles = (packs + most_lanes - 1) / most_lanes;
    lanes = (packs + tiles - 1) / tiles;
    depth = kColumnThreads / lanes;
    run = chunks = 1;
  }
};

template <std::size_t N>
struct Sums {
  double at[N];
};

/// Rows per thread, so that values loaded for its channels are used for several rows. Neighbouring
/// threads have neighbouring packs, and some hundred of them a contiguous part of x. The first
/// threads have the last part, which a pass over x from its beginning has left in the cache.
struct ColumnShares {
  std::int64_t groups, rows, packs;
  std::int64_t depth;        ///< Rows below each other; the distance between rows of a thread.
  std::int64_t run, chunks;  ///< chunks * depth * run >= rows.

  ColumnShares(std::int64_t g, std::int64_t r, std::int64_t p)
      : groups(g), rows(r), packs(p), depth(std::max<std::int64_t>(1, kColumnThreads / p)) {
    constexpr std::int64_t kMost = 16, kEnoughThreads = 1 << 18;
    run = kMost;
    while (run > 1 && groups * rows * packs < run * kEnoughThreads) run /= 2;
    chunks = (rows + depth * run - 1) / (depth * run);
  }
  [[nodiscard]] DKFAC_HD std::int64_t threads() const { return groups * chunks * depth * packs; }

  struct Place {
    std::int64_t group, pack, row;
    std::int64_t count;  ///< Number of rows, `depth` apart; 0 for a thread without work.
  };
  [[nodiscard]] DKFAC_HD Place place(std::int64_t thread) const {
    using dkfac::cuda::quotient;
    const std::int64_t from_end = threads() - 1 - thread;
    const std::int64_t line = quotient(from_end, packs), part = quotient(line, depth);
    const std::int64_t group = quotient(part, chunks);
    const std::int64_t row = (part - group * chunks) * depth * run + line - part * depth;
    const std::int64_t left = row < rows ? quotient(rows - row + depth - 1, depth) : 0;
    return {group, from_end - line * packs, row, left < run ? left : run};
  }
};

}  // namespace dkfac::nn::cuda
