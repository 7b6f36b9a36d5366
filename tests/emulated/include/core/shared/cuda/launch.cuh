#pragma once

#include <cstdint>

#include "dkfac/core/context.h"

#include "core/shared/cuda/device_code.h"
#include "core/shared/cuda/handles.h"
#include "core/shared/cuda/reduce_ops.h"
#include "emulated/device.h"

/// Implements the contract of nvcc's header of the same name on the emulated device: work is
/// enqueued on its streams and runs when a caller waits for it. Sums are added chunk by chunk.
namespace dkfac::cuda {
namespace launching {

inline constexpr std::int64_t kChunk = 4096;

template <class T, class Op, class Map>
T reduce(std::int64_t count, std::int64_t per_chunk, Op op, Map map) {
  T total = op.identity();
  for (std::int64_t first = 0; first < count; first += per_chunk) {
    T value = op.identity();
    for (std::int64_t k = first; k < count && k < first + per_chunk; ++k) value = op(value, map(k));
    total = op(total, value);
  }
  return total;
}

/// Launches work. Only its own errors are thrown: earlier errors of this thread are dropped.
template <class Work>
void start(const char* name, Stream stream, Work work) {
  before_launch();
  emulated::launch(stream.native(), work);
  check_launch(name);
}

}  // namespace launching

template <class F>
void for_each(Stream stream, std::int64_t n, F f) {
  if (n <= 0) return;
  launching::start("for_each", stream, [n, f] {
    for (std::int64_t i = 0; i < n; ++i) f(i);
  });
}

template <class F>
void for_each_2d(Stream stream, std::int64_t rows, std::int64_t cols, F f) {
  if (rows <= 0 || cols <= 0) return;
  launching::start("for_each_2d", stream, [rows, cols, f] {
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < cols; ++c) f(r, c);
  });
}

template <class T, class Load, class Store>
void for_each_transposed(Stream stream, std::int64_t rows, std::int64_t cols, Load load,
                         Store store) {
  if (rows <= 0 || cols <= 0) return;
  launching::start("for_each_transposed", stream, [rows, cols, load, store] {
    for (std::int64_t c = 0; c < cols; ++c)
      for (std::int64_t r = 0; r < rows; ++r) store(r, c, static_cast<T>(load(r, c)));
  });
}

template <class T, class Op, class Map, class Out>
void reduce_rows(Context& ctx, std::int64_t rows, std::int64_t count, Op op, Map map, Out out) {
  if (rows <= 0) return;
  launching::start("reduce_rows", ctx.stream(), [rows, count, op, map, out] {
    for (std::int64_t r = 0; r < rows; ++r)
      out(r, launching::reduce<T>(count, launching::kChunk, op,
                                  [&](std::int64_t k) { return map(r, k); }));
  });
}

template <class T, class Op, class Map, class Out>
void reduce_cols(Context& ctx, std::int64_t cols, std::int64_t count, Op op, Map map, Out out) {
  if (cols <= 0) return;
  launching::start("reduce_cols", ctx.stream(), [cols, count, op, map, out] {
    for (std::int64_t c = 0; c < cols; ++c)
      out(c, launching::reduce<T>(count, 512, op, [&](std::int64_t k) { return map(c, k); }));
  });
}

}  // namespace dkfac::cuda
