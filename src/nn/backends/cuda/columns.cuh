#pragma once

#include "core/shared/cuda/launch.cuh"
#include "nn/backends/cuda/columns.h"

/// A kernel shape beside those of core/shared/cuda/launch.cuh: sums over rows, within threads and
/// then within blocks.
namespace dkfac::nn::cuda {
namespace launching {

/// sums[k][thread], which avoids bank conflicts in shared memory.
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

/// Calls out(group, chunk, pack, sums) for every chunk of every group and every pack. sums adds the
/// results of run(group, pack, first row, stride, count) for the rows of the chunk, `count` rows
/// that are `stride` apart, in a fixed order. A chunk without rows gives zeros.
template <std::size_t N, class Run, class Out>
void sum_columns(Stream stream, const ColumnBlocks& blocks, Run run, Out out) {
  if (blocks.blocks() <= 0) return;
  dkfac::cuda::launching::start("sum_columns", launching::sum_columns_kernel<N, Run, Out>,
                                dkfac::cuda::launching::blocks_for(blocks.blocks(), 1),
                                kColumnThreads, stream, blocks, run, out);
}

}  // namespace dkfac::nn::cuda
