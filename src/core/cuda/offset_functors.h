#pragma once

#include <algorithm>
#include <cstdint>

#include "core/cuda/gram_functors.h"
#include "core/cuda/patch_functors.h"
#include "core/shared/cuda/convert.h"
#include "core/shared/cuda/device_code.h"
#include "core/shared/cuda/index.h"
#include "core/shared/element.h"

/// Factor of a 3x3 kernel with stride 1 and padding 1 by products of the image with itself.
///
/// The block of c for kernel positions k, l in {-1,0,1}^2 is the sum over output positions p of
/// x(p+k) x(p+l)', with x = 0 outside the image. Except for the border it depends on e = k - l
/// only: it is R(e) = sum over v of x(v+e) x(v)' without those v that no p reaches. For l = 1 these
/// are the v in the first row (column), for l = -1 in the last; there x(v+e) is inside the image
/// only if k = l in that coordinate. R(-e) = R(e)'. So all 81 blocks follow from 13 R(e) of width C
/// and the corresponding products along the four border lines and in the four corners (in two lines
/// each).
///
/// With two zero pixels after every row and two zero rows after every image, a shift by e is a
/// shift by e.y*(w+2) + e.x pixels in memory. R(e) is then the product of two matrices
/// [pixels, channels] that begin that many pixels apart.
namespace dkfac::cuda {

/// Indices of the stored products: R(e) for e = (0, 0..2), (1, -2..2), (2, -2..2); then those of
/// the first and last row for shifts of 0..2 pixels, of the first and last column likewise, line by
/// line; then those of the corners, 2*(last row) + (last column).
struct OffsetProducts {
  static constexpr int kImages = 13, kRows = kImages, kColumns = kRows + 6, kCorners = kColumns + 6;
  static constexpr int kCount = kCorners + 4;
  DKFAC_HD static int image(int y, int x) { return y == 0 ? x : y * 5 + x; }
  DKFAC_HD static int row(int pixels, int last) { return kRows + 2 * pixels + last; }
  DKFAC_HD static int column(int pixels, int last) { return kColumns + 2 * pixels + last; }
  DKFAC_HD static int corner(int which) { return kCorners + which; }
};

/// Indices of the sums of pixels: image, first and last row, first and last column, corners.
struct OffsetVectors {
  static constexpr int kImage = 0, kRows = 1, kColumns = 3, kCorners = 5, kCount = 9;
};

/// Rounds of the method: each takes `images` images of the batch, fewer at its end, as `groups`
/// groups of `per` images.
struct OffsetRounds {
  std::int64_t groups, per, rounds;
  [[nodiscard]] std::int64_t images() const { return groups * per; }
};

/// Chooses enough groups for products of this many channels to occupy a device; it ignores the size
/// of the device, so that the order of sums depends on shapes alone. Rounds keep running sums
/// within kRunningSum, if one image allows it, and the padded copy below 256 MiB, enough for any
/// layer of ResNet-50 at batch 256 in 16 bits. `size`: bytes of an element.
[[nodiscard]] inline OffsetRounds offset_rounds(const ops::PatchSpec& s, std::int64_t size) {
  constexpr std::int64_t kBytes = std::int64_t{256} << 20, kTile = 128, kTiles = 128;
  const std::int64_t pixels = (s.h + 2) * (s.w + 2), across = (s.c + kTile - 1) / kTile;
  const std::int64_t groups = std::max<std::int64_t>(1, kTiles / (across * across));
  const std::int64_t most =
      std::clamp<std::int64_t>(std::min(kBytes / (pixels * s.c * size),
                                        groups * std::max<std::int64_t>(1, kRunningSum / pixels)),
                               1, s.n);
  const std::int64_t rounds = (s.n + most - 1) / most, in_round = (s.n + rounds - 1) / rounds;
  const std::int64_t per = (in_round + groups - 1) / groups;
  return {(in_round + per - 1) / per, per, rounds};
}

/// Copies the images of one round with zero padding: pixels [images, h+2, w+2], then `tail` zero
/// pixels. W: a channel or a Word of them.
template <class W>
struct PadImages {
  const W* x;
  W* to;
  std::int64_t first, n, h, w, images, channels;
  ImageStrides at;

  [[nodiscard]] static std::int64_t pixels(std::int64_t images, std::int64_t h, std::int64_t w) {
    return (images * (h + 2) + 2) * (w + 2) + 2;
  }
  DKFAC_HD void operator()(std::int64_t i) const {
    const std::int64_t pixel = quotient(i, channels), line = quotient(pixel, w + 2);
    const std::int64_t image = quotient(line, h + 2), col = pixel - line * (w + 2);
    const std::int64_t row = line - image * (h + 2);
    const bool inside = image < images && first + image < n && row < h && col < w;
    to[i] = inside ? x[(first + image) * at.image + row * at.row + col * at.col +
                       (i - pixel * channels) * at.channel]
                   : W{};
  }
};

/// Copies the first and the last border line of every image, with zeros after each line: pixels
/// [2, images, length+2] and two more. `along` is the stride along a line, `across` between lines.
template <class W>
struct CopyLines {
  const W* x;
  W* to;
  std::int64_t first, n, length, lines, images, channels;
  std::int64_t image_stride, along, across, channel_stride;

  [[nodiscard]] static std::int64_t pixels(std::int64_t images, std::int64_t length) {
    return 2 * images * (length + 2) + 2;
  }
  DKFAC_HD void operator()(std::int64_t i) const {
    const std::int64_t pixel = quotient(i, channels), line = quotient(pixel, length + 2);
    const std::int64_t last = quotient(line, images), image = line - last * images;
    const std::int64_t position = pixel - line * (length + 2);
    const bool inside = last < 2 && first + image < n && position < length;
    to[i] = inside ? x[(first + image) * image_stride + position * along +
                       last * (lines - 1) * across + (i - pixel * channels) * channel_stride]
                   : W{};
  }
};

/// Copies the corners of every image: pixels [4, images].
template <class W>
struct CopyCorners {
  const W* x;
  W* to;
  std::int64_t first, n, h, w, images, channels;
  ImageStrides at;

  DKFAC_HD void operator()(std::int64_t i) const {
    const std::int64_t pixel = quotient(i, channels), which = quotient(pixel, images);
    const std::int64_t image = pixel - which * images;
    const std::int64_t row = which >= 2 ? h - 1 : 0, col = which % 2 == 1 ? w - 1 : 0;
    to[i] = first + image < n ? x[(first + image) * at.image + row * at.row + col * at.col +
                                  (i - pixel * channels) * at.channel]
                              : W{};
  }
};

/// Sums element i over `count` parts of `size` elements each: to(m, k) over parts(m, ., k).
template <class T>
struct SumParts {
  const T* parts;
  std::int64_t count, size;
  T* to;
  DKFAC_HD void operator()(std::int64_t i) const {
    const std::int64_t m = quotient(i, size);
    const T* part = parts + (m * count) * size + (i - m * size);
    T sum{};
    for (std::int64_t p = 0; p < count; ++p) sum += part[p * size];
    to[i] = sum;
  }
};

/// Returns pixel k of line i / channels, channel i % channels, for lines of `count` pixels each.
template <class S, class T>
struct LineTerm {
  const S* pixels;
  std::int64_t count, channels;
  DKFAC_HD T operator()(std::int64_t i, std::int64_t k) const {
    const std::int64_t line = quotient(i, channels);
    return widened<T>(pixels[(line * count + k) * channels + (i - line * channels)]);
  }
};

/// Lower triangle of c[d,d] = alpha * factor + beta*c, except the corner of a bias, in one pass.
/// products[29, channels, channels] is indexed by OffsetProducts, vectors[9, channels] by
/// OffsetVectors.
template <class T>
struct AssembleOffsets {
  const T* products;
  const T* vectors;
  std::int64_t channels;
  bool
      channels_last;  ///< Columns (kernel position, channel); otherwise (channel, kernel position).
  T* c;
  std::int64_t row;
  T alpha, beta;

  DKFAC_HD void operator()(std::int64_t i, std::int64_t j) const {
    const std::int64_t width = 9 * channels;
    if (j > i || (i == width && j == width)) return;
    const T sum = i == width ? vector_sum(tap(j), channel(j)) : block(i, j);
    c[i * row + j] = blended(alpha * sum, beta, c[i * row + j]);
  }

 private:
  [[nodiscard]] DKFAC_HD int tap(std::int64_t i) const {
    return static_cast<int>(channels_last ? quotient(i, channels) : i - quotient(i, 9) * 9);
  }
  [[nodiscard]] DKFAC_HD std::int64_t channel(std::int64_t i) const {
    return channels_last ? i - quotient(i, channels) * channels : quotient(i, 9);
  }
  [[nodiscard]] DKFAC_HD T product(int which, std::int64_t a, std::int64_t b) const {
    return products[(which * channels + a) * channels + b];
  }
  [[nodiscard]] DKFAC_HD T vector(int which, std::int64_t a) const {
    return vectors[which * channels + a];
  }

  [[nodiscard]] DKFAC_HD T block(std::int64_t i, std::int64_t j) const {
    int k = tap(i), l = tap(j);
    std::int64_t a = channel(i), b = channel(j);
    if (k < l) {  // c is symmetric, and only e >= 0 is stored.
      const int tap_of_j = l;
      l = k;
      k = tap_of_j;
      const std::int64_t channel_of_j = b;
      b = a;
      a = channel_of_j;
    }
    const int ky = k / 3 - 1, kx = k % 3 - 1, ly = l / 3 - 1, lx = l % 3 - 1;
    const bool misses_row = ky == ly && ky != 0, misses_column = kx == lx && kx != 0;
    const int last_row = ky < 0 ? 1 : 0, last_column = kx < 0 ? 1 : 0;
    T sum = product(OffsetProducts::image(ky - ly, kx - lx), a, b);
    if (misses_row) sum -= product(OffsetProducts::row(kx - lx, last_row), a, b);
    if (misses_column) sum -= product(OffsetProducts::column(ky - ly, last_column), a, b);
    if (misses_row && misses_column)
      sum += product(OffsetProducts::corner(2 * last_row + last_column), a, b);
    return sum;
  }

  [[nodiscard]] DKFAC_HD T vector_sum(int k, std::int64_t a) const {
    const int ky = k / 3 - 1, kx = k % 3 - 1;
    const int last_row = ky < 0 ? 1 : 0, last_column = kx < 0 ? 1 : 0;
    T sum = vector(OffsetVectors::kImage, a);
    if (ky != 0) sum -= vector(OffsetVectors::kRows + last_row, a);
    if (kx != 0) sum -= vector(OffsetVectors::kColumns + last_column, a);
    if (ky != 0 && kx != 0) sum += vector(OffsetVectors::kCorners + 2 * last_row + last_column, a);
    return sum;
  }
};

}  // namespace dkfac::cuda
