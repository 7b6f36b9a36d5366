#pragma once

#include "core/shared/cuda/launch.cuh"
#include "nn/backends/cuda/columns.h"

/// One more shape of kernel (core/shared/cuda/launch.cuh): sums over rows that a block and each of
/// its threads take in turn.
namespace dkfac::nn::cuda {
namespace launching {

/// sums[k][thread], so that threads meet no bank of shared memory twice.
template <std::size_t N, class Run, class Out>
__global__ __launch_bounds__(kColumnThreads) void sum_columns_kernel(ColumnBlocks blocks, Run run,
                                                                     Out out) {
  __shared__ double sums[N][kColumnThreads];
  const int thread = static_cast<int>(threadIdx.x), lanes = static_cast<int>(blocks.lanes);
  for (std::int64_t block = blockIdx.x; block < blocks.blocks(); block += gridDim.x) {
    const ColumnBlocks::Place at = blocks.place(block, thread);
    Sums<N> mine{};
    if (at.count > 0) mine = run(at.group, at.pack, at.row, blocks.depth, at.count);
    for (std::size_t k = 0; k < N; ++k) sums[k][thread] = mine.at[k];
    __syncthreads();
    for (std::int64_t left = blocks.depth; left > 1;) {
      const std::int64_t half = (left + 1) / 2;
      if (at.depth + half < left)
        for (std::size_t k = 0; k < N; ++k)
          sums[k][thread] += sums[k][thread + static_cast<int>(half) * lanes];
      left = half;
      __syncthreads();
    }
    if (at.depth == 0 && at.pack < blocks.packs) {
      for (std::size_t k = 0; k < N; ++k) mine.at[k] = sums[k][thread];
      out(at.group, at.chunk, at.pack, mine);
    }
    __syncthreads();
  }
}

}  // namespace launching

/// out(group, chunk, pack, sums) for every chunk of every group and every pack, where sums adds up
/// what run(group, pack, first row, step, count) gives for the rows of the chunk: `count` rows,
/// `step` apart; in a fixed order. A chunk without rows gives zeros.
template <std::size_t N, class Run, class Out>
void sum_columns(Stream stream, const ColumnBlocks& blocks, Run run, Out out) {
  if (blocks.blocks() <= 0) return;
  dkfac::cuda::launching::start("sum_columns", launching::sum_columns_kernel<N, Run, Out>,
                                dkfac::cuda::launching::blocks_for(blocks.blocks(), 1),
                                kColumnThreads, stream, blocks, run, out);
}

}  // namespace dkfac::nn::cuda
