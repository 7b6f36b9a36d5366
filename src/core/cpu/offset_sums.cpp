#include "core/cpu/offset_sums.h"

#include <algorithm>
#include <array>

#include "core/backend.h"
#include "core/cpu/matrix.h"

namespace dkfac::cpu {
namespace {

using ops::Layout;
using ops::PatchSpec;

/// Views `rows` consecutive groups of pixels as the rows of a matrix of `cols` channels.
TensorView pixels(TensorView buffer, std::int64_t offset, std::int64_t rows, std::int64_t cols,
                  std::int64_t stride) {
  auto* bytes = static_cast<std::byte*>(buffer.raw());
  bytes += static_cast<std::size_t>(offset) * size_of(buffer.dtype());
  return {bytes, buffer.dtype(), Shape{rows, cols}, Strides{stride, 1}, buffer.device()};
}

/// out[count*C, C] = beta*out + correlations of `count` consecutive shifts, from `shift`, over the
/// first n pixels of `line`, an array of pixels with C channels and zeros after the last one.
///
/// `count` adjacent pixels are one row of a matrix. Rows that begin at every pixel overlap, so the
/// pixels are split into `count` residue classes, in each of which rows do not overlap.
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

/// Samples of one chunk as pixels with contiguous channels, two zero pixels after each row and two
/// zero rows after each image, so that every shift of up to two pixels out of the image reads
/// zeros. The four border lines are stored likewise.
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

/// Number of samples of a chunk: their pixels fill about half of an L2 cache, or more if images are
/// so large or products so wide that this does not matter. It is limited so that one running f32
/// sum over them loses no digits.
std::int64_t chunk_samples(const PatchSpec& s, DType dtype) {
  constexpr std::int64_t kBytes = 512 * 1024, kPixels = 2048, kMostPixels = 8192;
  const std::int64_t per_sample = (s.h + 2) * (s.w + 2);
  const std::int64_t bytes = per_sample * s.c * static_cast<std::int64_t>(size_of(dtype));
  return std::clamp<std::int64_t>(std::max(kBytes / bytes, kPixels / per_sample), 1,
                                  std::max<std::int64_t>(1, kMostPixels / per_sample));
}

/// Makes a chunk of zeros, with_image including the image.
Chunk make_chunk(Context& ctx, Scratch& scratch, const PatchSpec& s, std::int64_t samples,
                 DType dtype, bool with_image) {
  Chunk chunk{s, samples, {}, {}};
  const auto zeros = [&](std::int64_t n) {
    const TensorView out = scratch.take({n * s.c}, dtype);
    fill(ctx, out, 0);
    return out;
  };
  if (with_image) chunk.image = zeros(samples * chunk.sample() + chunk.tail());
  for (std::size_t i = 0; i < 4; ++i) chunk.lines[i] = zeros(samples * chunk.line(i) + 2);
  return chunk;
}

/// Loads one row of pixels with contiguous channels.
template <class T>
void load_row(const PatchSpec& s, const T* image, std::int64_t y, T* out) {
  if (s.layout == Layout::nhwc) {
    const T* from = image + y * s.w * s.x_channels() + s.first_c;
    if (s.c == s.x_channels()) {
      std::copy_n(from, s.w * s.c, out);
      return;
    }
    for (std::int64_t x = 0; x < s.w; ++x, from += s.x_channels()) {
      out = std::copy_n(from, s.c, out);
    }
    return;
  }
  for (std::int64_t c = 0; c < s.c; ++c) {
    const T* from = image + ((s.first_c + c) * s.h + y) * s.w;
    for (std::int64_t x = 0; x < s.w; ++x) out[x * s.c + c] = from[x];
  }
}

/// Loads the border lines of sample n from its pixels.
template <class T>
void load_lines(const Chunk& chunk, std::int64_t n, const T* pixel, std::int64_t row_stride,
                std::int64_t pixel_stride) {
  const PatchSpec& s = chunk.spec;
  const auto copy = [&](std::size_t which, const T* from, std::int64_t count, std::int64_t stride) {
    T* to = chunk.lines[which].data<T>() + n * chunk.line(which) * s.c;
    for (std::int64_t i = 0; i < count; ++i, from += stride) to = std::copy_n(from, s.c, to);
  };
  copy(0, pixel, s.w, pixel_stride);
  copy(1, pixel + (s.h - 1) * row_stride, s.w, pixel_stride);
  copy(2, pixel, s.h, row_stride);
  copy(3, pixel + (s.w - 1) * pixel_stride, s.h, row_stride);
}

/// Zeroes the ends of the lines after `count` samples: the last chunk may be shorter than the one
/// before.
template <class T>
void end_lines(const Chunk& chunk, std::int64_t count) {
  const std::int64_t c = chunk.spec.c;
  for (std::size_t i = 0; i < 4; ++i) {
    std::fill_n(chunk.lines[i].data<T>() + count * chunk.line(i) * c, 2 * c, T{0});
  }
}

/// Loads samples [first, first + count) of x into the chunk; its zeros stay.
template <class T>
void load(const Chunk& chunk, const T* x, std::int64_t first, std::int64_t count) {
  const PatchSpec& s = chunk.spec;
  const std::int64_t c = s.c;
  T* image = chunk.image.data<T>();
  for (std::int64_t n = 0; n < count; ++n) {
    T* sample = image + n * chunk.sample() * c;
    for (std::int64_t y = 0; y < s.h; ++y) {
      load_row(s, x + (first + n) * s.h * s.w * s.x_channels(), y, sample + y * chunk.row() * c);
    }
    load_lines(chunk, n, static_cast<const T*>(sample), chunk.row() * c, c);
  }
  std::fill_n(image + count * chunk.sample() * c, chunk.tail() * c, T{0});
  end_lines<T>(chunk, count);
}

/// Returns corner `which` of all samples, from the two lines that are rows.
TensorView corners_of(const Chunk& chunk, int which, std::int64_t count) {
  const std::int64_t c = chunk.spec.c, pixel = which % 2 == 1 ? chunk.spec.w - 1 : 0;
  return pixels(chunk.lines[which >= 2 ? 1 : 0], pixel * c, count, c, chunk.line(0) * c);
}

void add_images(Context& ctx, const Chunk& chunk, std::int64_t count, double beta,
                const OffsetSums& sums) {
  const std::int64_t c = chunk.spec.c, n = count * chunk.sample();
  correlate(ctx, chunk.image, n, c, 0, 3, beta, sums.image(0));
  for (int dy = 1; dy <= 2; ++dy) {
    correlate(ctx, chunk.image, n, c, dy * chunk.row() - 2, 5, beta, sums.image(dy));
  }
}

void add_borders(Context& ctx, const Chunk& chunk, std::int64_t count, double beta,
                 const OffsetSums& sums) {
  const std::int64_t c = chunk.spec.c;
  for (int i = 0; i < 4; ++i) {
    const auto which = static_cast<std::size_t>(i);
    correlate(ctx, chunk.lines[which], count * chunk.line(which), c, 0, 3, beta, sums.line(i));
    const TensorView corners = corners_of(chunk, i, count);
    ops::gemm(ctx, ops::Trans::yes, ops::Trans::no, 1, corners, corners, beta, sums.corner(i));
  }
}

void add_border_sums(Context& ctx, const Chunk& chunk, std::int64_t count, double beta,
                     const OffsetSums& sums) {
  const std::int64_t c = chunk.spec.c;
  for (int i = 0; i < 4; ++i) {
    const auto which = static_cast<std::size_t>(i);
    col_sum(ctx, 1, pixels(chunk.lines[which], 0, count * chunk.line(which), c, c), beta,
            sums.line_sum(i));
    col_sum(ctx, 1, corners_of(chunk, i, count), beta, sums.corner_sum(i));
  }
}

}  // namespace

void correlate_samples(Context& ctx, const PatchSpec& spec, ConstTensorView x, std::int64_t first,
                       std::int64_t last, bool with_bias, const OffsetSums& sums) {
  Scratch scratch(ctx);
  const std::int64_t most = std::min(chunk_samples(spec, x.dtype()), last - first), c = spec.c;
  const Chunk chunk = make_chunk(ctx, scratch, spec, most, x.dtype(), true);
  for (double beta = 0; first < last; first += most, beta = 1) {
    const std::int64_t count = std::min(most, last - first);
    visit_computing(x.dtype(), [&]<class T>(Type<T>) { load(chunk, x.data<T>(), first, count); });
    add_images(ctx, chunk, count, beta, sums);
    add_borders(ctx, chunk, count, beta, sums);
    if (!with_bias) continue;
    col_sum(ctx, 1, pixels(chunk.image, 0, count * chunk.sample(), c, c), beta, sums.image_sum());
    add_border_sums(ctx, chunk, count, beta, sums);
  }
}

void correlate_borders(Context& ctx, const PatchSpec& spec, ConstTensorView x, std::int64_t first,
                       std::int64_t last, bool with_bias, const OffsetSums& sums) {
  Scratch scratch(ctx);
  const std::int64_t count = last - first, channels = spec.x_channels();
  const Chunk chunk = make_chunk(ctx, scratch, spec, count, x.dtype(), false);
  const ConstTensorView samples = x.slice(0, first, count);
  visit_computing(x.dtype(), [&]<class T>(Type<T>) {
    const T* sample = samples.data<T>() + spec.first_c;
    for (std::int64_t n = 0; n < count; ++n, sample += spec.h * spec.w * channels) {
      load_lines(chunk, n, sample, spec.w * channels, channels);
    }
  });
  add_borders(ctx, chunk, count, 0, sums);
  if (!with_bias) return;
  const ConstTensorView own = samples.slice(3, spec.first_c, spec.c);
  col_sum(ctx, 1,
          {own.raw(), x.dtype(), {count * spec.h * spec.w, spec.c}, {channels, 1}, x.device()}, 0,
          sums.image_sum());
  add_border_sums(ctx, chunk, count, 0, sums);
}

}  // namespace dkfac::cpu
