#include <algorithm>
#include <cstddef>
#include <cstring>

#include "dkfac/core/ops.h"

#include "core/shared/parallel.h"
#include "nn/backends/backend_elementwise.h"
#include "nn/backends/cpu/storage.h"
#include "nn/backends/dtype.h"

/// Kernels that move, mix or add whole rows of memory.
namespace dkfac::nn::cpu {
namespace {

/// Calls f(offset into the small map, offset into the large one) for every pixel that is kept;
/// offsets are in pixels.
template <class F>
void for_kept_pixels(const PadShape& s, F&& f) {
  dkfac::cpu::parallel_ranges(s.n * s.small_h, 1 + dkfac::cpu::kGrain / (s.small_w * s.small_c),
                              [&](std::int64_t begin, std::int64_t end) {
                                for (std::int64_t row = begin; row < end; ++row) {
                                  const std::int64_t n = row / s.small_h,
                                                     h = row % s.small_h * s.stride;
                                  for (std::int64_t w = 0; w < s.small_w; ++w)
                                    f(row * s.small_w + w, (n * s.h + h) * s.w + w * s.stride);
                                }
                              });
}

/// Bytes of the pixels of both maps, and of the zeros before and after.
struct PixelBytes {
  PixelBytes(const PadShape& s, DType dtype)
      : large(static_cast<std::size_t>(s.c) * size_of(dtype)),
        small(static_cast<std::size_t>(s.small_c) * size_of(dtype)),
        before(static_cast<std::size_t>(s.before) * size_of(dtype)) {}
  std::size_t large, small, before;
};

template <class T>
void flip_rows(ConstTensorView from, TensorView to) {
  const std::int64_t rows = from.dim(0) * from.dim(1), width = from.dim(2), c = from.dim(3);
  const T* in = from.data<T>();
  T* out = to.data<T>();
  for (std::int64_t row = 0; row < rows; ++row, in += width * c, out += width * c) {
    for (std::int64_t x = 0; x < width; ++x) std::copy_n(in + (width - 1 - x) * c, c, out + x * c);
  }
}

}  // namespace

void sum_rows(Context& ctx, ConstTensorView x, TensorView sums) {
  Scratch scratch(ctx);
  const std::int64_t c = sums.numel();
  ConstTensorView rows = x.reshape(Shape{x.numel() / c, c});
  if (x.dtype() != sums.dtype()) {
    const TensorView wide = scratch.take(rows.shape(), sums.dtype());
    ops::cast(ctx, rows, wide);
    rows = wide;
  }
  ops::col_sum(ctx, 1.0, rows, 0.0, sums);
}

void exchange(Context&, TensorView a, TensorView b) {
  visit_computing(a.dtype(), [&]<class T>(Type<T>) {
    std::swap_ranges(a.data<T>(), a.data<T>() + a.numel(), b.data<T>());
  });
}

void pad_channels(Context&, const PadShape& s, ConstTensorView large, TensorView small) {
  const PixelBytes bytes(s, large.dtype());
  const auto* from = static_cast<const std::byte*>(large.raw());
  auto* to = static_cast<std::byte*>(small.raw());
  for_kept_pixels(s, [&](std::int64_t into, std::int64_t out_of) {
    std::byte* pixel = to + static_cast<std::size_t>(into) * bytes.small;
    std::memset(pixel, 0, bytes.before);
    std::memcpy(pixel + bytes.before, from + static_cast<std::size_t>(out_of) * bytes.large,
                bytes.large);
    std::memset(pixel + bytes.before + bytes.large, 0, bytes.small - bytes.before - bytes.large);
  });
}

void pad_channels_backward(Context&, const PadShape& s, ConstTensorView small, TensorView large) {
  const PixelBytes bytes(s, large.dtype());
  const auto* from = static_cast<const std::byte*>(small.raw());
  auto* to = static_cast<std::byte*>(large.raw());
  if (s.stride > 1) std::memset(to, 0, large.bytes());
  for_kept_pixels(s, [&](std::int64_t out_of, std::int64_t into) {
    std::memcpy(to + static_cast<std::size_t>(into) * bytes.large,
                from + static_cast<std::size_t>(out_of) * bytes.small + bytes.before, bytes.large);
  });
}

void flip_horizontal(Context&, ConstTensorView x, TensorView flipped) {
  visit_floating(x.dtype(), [&]<class T>(Type<T>) { flip_rows<T>(x, flipped); });
}

}  // namespace dkfac::nn::cpu
