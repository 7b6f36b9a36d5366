#pragma once

#include <algorithm>
#include <cstdint>

#include "dkfac/core/context.h"

#include "core/shared/cuda/device_code.h"
#include "core/shared/cuda/device_guard.h"
#include "core/shared/cuda/handles.h"
#include "core/shared/cuda/reduce_ops.h"

/// Generic kernels (map, reduction, transposition) with functors as arguments. Functors are
/// trivially copyable, accept std::int64_t indices and hold device pointers. Results depend on
/// shapes alone, not on the device: sums have a fixed order and no atomics.
namespace dkfac::cuda {
namespace launching {

inline constexpr int kThreads = 256;
inline constexpr std::int64_t kMaxBlocks = 1 << 15;
inline constexpr std::int64_t kChunk = 4096;  ///< Elements that a block reduces.
inline constexpr int kTile = 32;

inline unsigned blocks_for(std::int64_t items, std::int64_t per_block) {
  return static_cast<unsigned>(
      std::clamp<std::int64_t>((items + per_block - 1) / per_block, 1, kMaxBlocks));
}

template <class F>
__global__ void each_kernel(std::int64_t n, F f) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += stride)
    f(i);
}

template <class F>
__global__ void each_2d_kernel(std::int64_t rows, std::int64_t cols, F f) {
  for (std::int64_t r = blockIdx.x; r < rows; r += gridDim.x)
    for (std::int64_t c = static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
         c < cols; c += static_cast<std::int64_t>(gridDim.y) * blockDim.x)
      f(r, c);
}

/// Reduces with one block per (row, chunk): strided partial results of its threads, then a tree.
template <class T, class Op, class Map, class Out>
__global__ void reduce_rows_kernel(std::int64_t rows, std::int64_t count, std::int64_t chunks,
                                   Op op, Map map, Out out) {
  __shared__ T partial[kThreads];
  for (std::int64_t item = blockIdx.x; item < rows * chunks; item += gridDim.x) {
    const std::int64_t row = item / chunks, chunk = item % chunks;
    const std::int64_t end = min(count, (chunk + 1) * kChunk);
    T value = op.identity();
    for (std::int64_t k = chunk * kChunk + threadIdx.x; k < end; k += kThreads)
      value = op(value, map(row, k));
    partial[threadIdx.x] = value;
    __syncthreads();
    for (int half = kThreads / 2; half > 0; half /= 2) {
      if (threadIdx.x < half)
        partial[threadIdx.x] = op(partial[threadIdx.x], partial[threadIdx.x + half]);
      __syncthreads();
    }
    if (threadIdx.x == 0) out(item, partial[0]);
    __syncthreads();
  }
}

/// Reduces with blocks of 32 columns by 8 rows, so that loads coalesce; item = chunk * cols + col.
template <class T, class Op, class Map, class Out>
__global__ void reduce_cols_kernel(std::int64_t cols, std::int64_t count, std::int64_t chunks,
                                   std::int64_t per_chunk, Op op, Map map, Out out) {
  __shared__ T partial[kThreads / kTile][kTile];
  const std::int64_t col_blocks = (cols + kTile - 1) / kTile;
  for (std::int64_t item = blockIdx.x; item < col_blocks * chunks; item += gridDim.x) {
    const std::int64_t col = item % col_blocks * kTile + threadIdx.x, chunk = item / col_blocks;
    const std::int64_t end = min(count, (chunk + 1) * per_chunk);
    T value = op.identity();
    if (col < cols)
      for (std::int64_t k = chunk * per_chunk + threadIdx.y; k < end; k += kThreads / kTile)
        value = op(value, map(col, k));
    partial[threadIdx.y][threadIdx.x] = value;
    __syncthreads();
    for (int half = kThreads / kTile / 2; half > 0; half /= 2) {
      if (threadIdx.y < half)
        partial[threadIdx.y][threadIdx.x] =
            op(partial[threadIdx.y][threadIdx.x], partial[threadIdx.y + half][threadIdx.x]);
      __syncthreads();
    }
    if (threadIdx.y == 0 && col < cols) out(chunk * cols + col, partial[0][threadIdx.x]);
    __syncthreads();
  }
}

template <class T, class Load, class Store>
__global__ void transposed_kernel(std::int64_t rows, std::int64_t cols, Load load, Store store) {
  __shared__ T tile[kTile][kTile + 1];
  const std::int64_t across = (cols + kTile - 1) / kTile, down = (rows + kTile - 1) / kTile;
  for (std::int64_t item = blockIdx.x; item < across * down; item += gridDim.x) {
    const std::int64_t r0 = item / across * kTile, c0 = item % across * kTile;
    for (int i = threadIdx.y; i < kTile; i += kThreads / kTile)
      if (r0 + i < rows && c0 + threadIdx.x < cols)
        tile[i][threadIdx.x] = load(r0 + i, c0 + threadIdx.x);
    __syncthreads();
    for (int i = threadIdx.y; i < kTile; i += kThreads / kTile)
      if (c0 + i < cols && r0 + threadIdx.x < rows)
        store(r0 + threadIdx.x, c0 + i, tile[threadIdx.x][i]);
    __syncthreads();
  }
}

template <class T>
struct StorePartial {
  T* to;
  DKFAC_HD void operator()(std::int64_t i, T value) const { to[i] = value; }
};
/// Loads partials[row * chunks + chunk].
template <class T>
struct LoadRowPartial {
  const T* from;
  std::int64_t chunks;
  DKFAC_HD T operator()(std::int64_t row, std::int64_t k) const { return from[row * chunks + k]; }
};
/// Loads partials[chunk * cols + col].
template <class T>
struct LoadColPartial {
  const T* from;
  std::int64_t cols;
  DKFAC_HD T operator()(std::int64_t col, std::int64_t k) const { return from[k * cols + col]; }
};

/// Launches a kernel and checks the launch. Errors that earlier calls left on this thread are
/// cleared first.
template <class Kernel, class... Args>
void start(const char* name, Kernel kernel, dim3 grid, dim3 block, Stream stream, Args... args) {
  const DeviceGuard guard(stream.device());
  before_launch();
  kernel<<<grid, block, 0, stream.native()>>>(args...);
  check_launch(name);
}

template <class T>
T* take_partials(Scratch& scratch, std::int64_t count) {
  const std::int64_t words = (count * static_cast<std::int64_t>(sizeof(T)) + 7) / 8;
  return static_cast<T*>(scratch.take({words}, DType::f64).raw());
}

}  // namespace launching

/// Runs f(i) for every i in [0, n), in parallel.
template <class F>
void for_each(Stream stream, std::int64_t n, F f) {
  if (n <= 0) return;
  launching::start("for_each", launching::each_kernel<F>,
                   launching::blocks_for(n, launching::kThreads), launching::kThreads, stream, n,
                   f);
}

/// Runs f(r, c) for every r in [0, rows) and c in [0, cols), in parallel; adjacent threads have
/// adjacent c.
template <class F>
void for_each_2d(Stream stream, std::int64_t rows, std::int64_t cols, F f) {
  if (rows <= 0 || cols <= 0) return;
  const dim3 grid(launching::blocks_for(rows, 1),
                  std::min(launching::blocks_for(cols, launching::kThreads), 64U));
  launching::start("for_each_2d", launching::each_2d_kernel<F>, grid, launching::kThreads, stream,
                   rows, cols, f);
}

/// Calls store(r, c, load(r, c)) with loads coalesced in c and stores coalesced in r, as for a
/// transposition. T is the type of the value.
template <class T, class Load, class Store>
void for_each_transposed(Stream stream, std::int64_t rows, std::int64_t cols, Load load,
                         Store store) {
  if (rows <= 0 || cols <= 0) return;
  const std::int64_t tiles = ((rows + launching::kTile - 1) / launching::kTile) *
                             ((cols + launching::kTile - 1) / launching::kTile);
  launching::start("for_each_transposed", launching::transposed_kernel<T, Load, Store>,
                   launching::blocks_for(tiles, 1),
                   dim3(launching::kTile, launching::kThreads / launching::kTile), stream, rows,
                   cols, load, store);
}

/// Calls out(r, v) for every r in [0, rows), where v reduces map(r, k) over k in [0, count) in an
/// order that depends on `count` alone; count 0 gives the identity. map is called once for each
/// (r, k). T is the type of the value. Efficient for few long and for many short rows; adjacent
/// threads have adjacent k.
template <class T, class Op, class Map, class Out>
void reduce_rows(Context& ctx, std::int64_t rows, std::int64_t count, Op op, Map map, Out out) {
  if (rows <= 0) return;
  const std::int64_t chunks =
      std::max<std::int64_t>(1, (count + launching::kChunk - 1) / launching::kChunk);
  const auto launch = [&](auto to) {
    launching::start("reduce_rows", launching::reduce_rows_kernel<T, Op, Map, decltype(to)>,
                     launching::blocks_for(rows * chunks, 1), launching::kThreads, ctx.stream(),
                     rows, count, chunks, op, map, to);
  };
  if (chunks == 1) return launch(out);
  Scratch scratch(ctx);
  T* partials = launching::take_partials<T>(scratch, rows * chunks);
  launch(launching::StorePartial<T>{partials});
  reduce_rows<T>(ctx, rows, chunks, op, launching::LoadRowPartial<T>{partials, chunks}, out);
}

/// Calls out(c, v) for every c in [0, cols), where v reduces map(c, k) over k in [0, count) as in
/// reduce_rows(); adjacent threads have adjacent c.
template <class T, class Op, class Map, class Out>
void reduce_cols(Context& ctx, std::int64_t cols, std::int64_t count, Op op, Map map, Out out) {
  if (cols <= 0) return;
  constexpr std::int64_t kPerChunk = 512;
  const std::int64_t chunks = std::max<std::int64_t>(1, (count + kPerChunk - 1) / kPerChunk);
  const std::int64_t blocks = (cols + launching::kTile - 1) / launching::kTile * chunks;
  const auto launch = [&](auto to) {
    launching::start("reduce_cols", launching::reduce_cols_kernel<T, Op, Map, decltype(to)>,
                     launching::blocks_for(blocks, 1),
                     dim3(launching::kTile, launching::kThreads / launching::kTile), ctx.stream(),
                     cols, count, chunks, kPerChunk, op, map, to);
  };
  if (chunks == 1) return launch(out);
  Scratch scratch(ctx);
  T* partials = launching::take_partials<T>(scratch, cols * chunks);
  launch(launching::StorePartial<T>{partials});
  reduce_cols<T>(ctx, cols, chunks, op, launching::LoadColPartial<T>{partials, cols}, out);
}

}  // namespace dkfac::cuda
