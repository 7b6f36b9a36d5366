#include "core/cpu/offset_sums.h"

#include <algorithm>
#include <array>

#include "core/backend.h"
#include "core/cpu/matrix.h"

namespace dkfac::cpu {
namespace {

using ops::Layout;
using ops::PatchSpec;

/// `rows` consecutive groups of pixels as the rows of a matrix of `cols` channels.
TensorView pixels(TensorView buffer, std::int64_t offset, std::int64_t rows, std::int64_t cols,
                  std::int64_t stride) {
  auto* bytes = static_cast<std::byte*>(buffer.raw());
  bytes += static_cast<std::size_t>(offset) * size_of(buffer.dtype());
  return {bytes, buffer.dtype(), Shape{rows, cols}, Strides{stride, 1}, buffer.device()};
}

/// out[count*C, C] = beta*out + correlations of `count` consecutive shifts, from `shift`, over the
/// first n pixels of `line`, an array of pixels with C channels and zeros after the last one.
///
/// `count` neighbouring pixels are one row of a matrix; rows that begin at every pixel overlap, so
/// the pixels are taken in `count` classes of equal remainder, in each of which they do not.
void correlate(Context& ctx, TensorView line, std::int64_t n, std::int64_t channels,
               std::int64_t shift, std::int64_t count, double beta, TensorView out) {
  const std::int64_t stride = count * channels;
  for (std::int64_t i = 0; i < count; ++i, beta = 1) {
    const std::int64_t rows = (n - i + count - 1) / count;
    const TensorView shifted = pixels(line, (i + shift) * channels, rows, stride, stride);
    const TensorView plain = pixels(line, i * channels, rows, channels, stride);
    ops::gemm(ctx, ops::Trans::yes, ops::Trans::no, 1, shifted, plain, beta, out);
  }
}

/// Samples of one chunk as pixels with their channels together, two zero pixels after each row and
/// two zero rows after each image: every shift of up to two pixels that leaves the image meets
/// zeros. The four border lines are kept likewise.
struct Chunk {
  const PatchSpec& spec;
  std::int64_t samples;             ///< Capacity.
  TensorView image;                 ///< Flat.
  std::array<TensorView, 4> lines;  ///< Flat.

  [[nodiscard]] std::int64_t row() const { return spec.w + 2; }
  [[nodiscard]] std::int64_t sample() const { return (spec.h + 2) * row(); }
  /// Pixels of a border line with its two zeros.
  [[nodiscard]] std::int64_t line(std::size_t which) const {
    return which < 2 ? spec.w + 2 : spec.h + 2;
  }
  /// Zero pixels that must follow the last sample.
  [[nodiscard]] std::int64_t tail() const { return 2 * row() + 3; }
};

/// Samples whose pixels fill about half a second-level cache, or more where an image is so large
/// or the products so wide that this does not matter.
std::int64_t chunk_samples(const PatchSpec& s, DType dtype) {
  constexpr std::int64_t kBytes = 512 * 1024, kPixels = 2048;
  const std::int64_t per_sample = (s.h + 2) * (s.w + 2);
  const std::int64_t bytes = per_sample * s.c * static_cast<std::int64_t>(size_of(dtype));
  return std::max({kBytes / bytes, kPixels / per_sample, std::int64_t{1}});
}

Chunk make_chunk(Context& ctx, Scratch& scratch, const PatchSpec& s, std::int64_t samples,
                 DType dtype) {
  Chunk chunk{s, samples, {}, {}};
  const auto zeros = [&](std::int64_t n) {
    const TensorView out = scratch.take({n * s.c}, dtype);
    fill(ctx, out, 0);
    return out;
  };
  chunk.image = zeros(samples * chunk.sample() + chunk.tail());
  for (std::size_t i = 0; i < 4; ++i) chunk.lines[i] = zeros(samples * chunk.line(i) + 2);
  return chunk;
}

/// One row of pixels, their channels together.
template <class T>
void load_row(const PatchSpec& s, const T* image, std::int64_t y, T* out) {
  if (s.layout == Layout::nhwc) {
    std::copy_n(image + y * s.w * s.c, s.w * s.c, out);
    return;
  }
  for (std::int64_t c = 0; c < s.c; ++c) {
    const T* from = image + (c * s.h + y) * s.w;
    for (std::int64_t x = 0; x < s.w; ++x) out[x * s.c + c] = from[x];
  }
}

/// Samples [first, first + count) of x into the chunk; what is zero stays zero.
template <class T>
void load(const Chunk& chunk, const T* x, std::int64_t first, std::int64_t count) {
  const PatchSpec& s = chunk.spec;
  const std::int64_t c = s.c;
  T* image = chunk.image.data<T>();
  for (std::int64_t n = 0; n < count; ++n) {
    T* sample = image + n * chunk.sample() * c;
    for (std::int64_t y = 0; y < s.h; ++y) {
      load_row(s, x + (first + n) * s.h * s.w * c, y, sample + y * chunk.row() * c);
    }
    const auto line = [&](std::size_t i) {
      return chunk.lines[i].data<T>() + n * chunk.line(i) * c;
    };
    std::copy_n(sample, s.w * c, line(0));
    std::copy_n(sample + (s.h - 1) * chunk.row() * c, s.w * c, line(1));
    for (std::int64_t y = 0; y < s.h; ++y) {
      const T* row = sample + y * chunk.row() * c;
      std::copy_n(row, c, line(2) + y * c);
      std::copy_n(row + (s.w - 1) * c, c, line(3) + y * c);
    }
  }
  // The last chunk may be shorter than the one before.
  std::fill_n(image + count * chunk.sample() * c, chunk.tail() * c, T{0});
  for (std::size_t i = 0; i < 4; ++i) {
    std::fill_n(chunk.lines[i].data<T>() + count * chunk.line(i) * c, 2 * c, T{0});
  }
}

/// Pixel of the chunk's first sample where corner `which` stands.
std::int64_t corner_pixel(const Chunk& chunk, int which) {
  return (which >= 2 ? (chunk.spec.h - 1) * chunk.row() : 0) +
         (which % 2 == 1 ? chunk.spec.w - 1 : 0);
}

void add_products(Context& ctx, const Chunk& chunk, std::int64_t count, double beta,
                  const OffsetSums& sums) {
  const std::int64_t c = chunk.spec.c, n = count * chunk.sample();
  correlate(ctx, chunk.image, n, c, 0, 3, beta, sums.image(0));
  for (int dy = 1; dy <= 2; ++dy) {
    correlate(ctx, chunk.image, n, c, dy * chunk.row() - 2, 5, beta, sums.image(dy));
  }
  for (int i = 0; i < 4; ++i) {
    const auto which = static_cast<std::size_t>(i);
    correlate(ctx, chunk.lines[which], count * chunk.line(which), c, 0, 3, beta, sums.line(i));
    const TensorView corners =
        pixels(chunk.image, corner_pixel(chunk, i) * c, count, c, chunk.sample() * c);
    ops::gemm(ctx, ops::Trans::yes, ops::Trans::no, 1, corners, corners, beta, sums.corner(i));
  }
}

void add_sums(Context& ctx, const Chunk& chunk, std::int64_t count, double beta,
              const OffsetSums& sums) {
  const std::int64_t c = chunk.spec.c;
  col_sum(ctx, 1, pixels(chunk.image, 0, count * chunk.sample(), c, c), beta, sums.image_sum());
  for (int i = 0; i < 4; ++i) {
    const auto which = static_cast<std::size_t>(i);
    col_sum(ctx, 1, pixels(chunk.lines[which], 0, count * chunk.line(which), c, c), beta,
            sums.line_sum(i));
    col_sum(ctx, 1, pixels(chunk.image, corner_pixel(chunk, i) * c, count, c, chunk.sample() * c),
            beta, sums.corner_sum(i));
  }
}

}  // namespace

void correlate_samples(Context& ctx, const PatchSpec& spec, ConstTensorView x, std::int64_t first,
                       std::int64_t last, bool with_bias, const OffsetSums& sums) {
  Scratch scratch(ctx);
  const std::int64_t step = std::min(chunk_samples(spec, x.dtype()), last - first);
  const Chunk chunk = make_chunk(ctx, scratch, spec, step, x.dtype());
  for (double beta = 0; first < last; first += step, beta = 1) {
    const std::int64_t count = std::min(step, last - first);
    with_real(x.dtype(), [&](auto zero) { load(chunk, x.data<decltype(zero)>(), first, count); });
    add_products(ctx, chunk, count, beta, sums);
    if (with_bias) add_sums(ctx, chunk, count, beta, sums);
  }
}

}  // namespace dkfac::cpu
