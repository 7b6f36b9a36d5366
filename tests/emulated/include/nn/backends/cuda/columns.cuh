#pragma once

#include "core/shared/cuda/launch.cuh"
#include "nn/backends/cuda/columns.h"

/// Implements the contract of nvcc's header of the same name on the emulated device. Threads of a
/// block run one after another, then the tree of the same order.
namespace dkfac::nn::cuda {
namespace launching {

template <std::size_t N, class Run, class Out>
void sum_block(const ColumnBlocks& blocks, std::int64_t block, Run run, Out out) {
  Sums<N> sums[kColumnThreads]{};
  for (int thread = 0; thread < kColumnThreads; ++thread) {
    const ColumnBlocks::Place at = blocks.place(block, thread);
    if (at.count > 0) sums[thread] = run(at.group, at.pack, at.row, blocks.depth, at.count);
  }
  for (std::int64_t left = blocks.depth; left > 1;) {
    const std::int64_t half = (left + 1) / 2;
    for (std::int64_t t = 0; t < (left - half) * blocks.lanes; ++t)
      for (std::size_t k = 0; k < N; ++k) sums[t].at[k] += sums[t + half * blocks.lanes].at[k];
    left = half;
  }
  for (int thread = 0; thread < blocks.lanes; ++thread) {
    const ColumnBlocks::Place at = blocks.place(block, thread);
    if (at.pack < blocks.packs) out(at.group, at.chunk, at.pack, sums[thread]);
  }
}

}  // namespace launching

template <std::size_t N, class Run, class Out>
void sum_columns(Stream stream, const ColumnBlocks& blocks, Run run, Out out) {
  if (blocks.blocks() <= 0) return;
  dkfac::cuda::launching::start("sum_columns", stream, [blocks, run, out] {
    for (std::int64_t block = 0; block < blocks.blocks(); ++block)
      launching::sum_block<N>(blocks, block, run, out);
  });
}

}  // namespace dkfac::nn::cuda
