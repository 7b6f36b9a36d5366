#include "core/cpu/patches.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "dkfac/core/ops.h"

#include "core/backend_linalg.h"
#include "core/cpu/matrix.h"
#include "core/shared/parallel.h"

namespace dkfac::cpu {
namespace {

using ops::Layout;
using ops::PatchSpec;

/// Part of a kernel of `size` elements, `dilation` pixels apart, inside an image of `extent` if the
/// kernel starts at `origin`.
struct Overlap {
  std::int64_t first, last;  ///< Kernel positions [first, last).
  Overlap(std::int64_t origin, std::int64_t size, std::int64_t dilation, std::int64_t extent)
      : first(std::min(positions_below(-origin, dilation), size)),
        last(std::clamp(positions_below(extent - origin, dilation), first, size)) {}

 private:
  /// Number of multiples 0, dilation, 2 dilation, ... below `limit`.
  static std::int64_t positions_below(std::int64_t limit, std::int64_t dilation) {
    return limit <= 0 ? 0 : (limit + dilation - 1) / dilation;
  }
};

/// Copies n elements. Runs of a few vectors, the kernel rows of images with few channels, are
/// copied in place of a call of memmove, which takes as long as the copy; the last block overlaps.
template <class T>
T* copy_run(const T* from, std::int64_t n, T* out) {
  constexpr std::int64_t kBlock = 16 / sizeof(T), kLongest = 4 * kBlock;
  if (n < kBlock || n > kLongest) return std::copy_n(from, n, out);
  for (std::int64_t i = 0; i < n - kBlock; i += kBlock) std::memcpy(out + i, from + i, 16);
  std::memcpy(out + n - kBlock, from + n - kBlock, 16);
  return out + n;
}

/// Copies `count` elements of one kernel row, of c channels each, from the pixel of the first on.
template <class T>
T* kernel_row(const PatchSpec& s, const T* from, std::int64_t count, T* out) {
  const std::int64_t channels = s.x_channels();
  if (s.window.dilation_w == 1 && s.c == channels) return copy_run(from, count * s.c, out);
  for (std::int64_t i = 0; i < count; ++i, from += s.window.dilation_w * channels) {
    out = std::copy_n(from, s.c, out);
  }
  return out;
}

/// Copies the patch whose upper left corner is (y, x) in image[h,w,x_channels]; `image` begins with
/// the first channel that is read.
template <class T>
void patch_nhwc(const PatchSpec& s, const T* image, std::int64_t y, std::int64_t x, T* out) {
  const ops::Window& k = s.window;
  const std::int64_t line = k.kernel_w * s.c;
  const Overlap rows(y, k.kernel_h, k.dilation_h, s.h), cols(x, k.kernel_w, k.dilation_w, s.w);
  out = std::fill_n(out, rows.first * line, T{0});
  for (std::int64_t kh = rows.first; kh < rows.last; ++kh) {
    const std::int64_t pixel = (y + kh * k.dilation_h) * s.w + x + cols.first * k.dilation_w;
    out = std::fill_n(out, cols.first * s.c, T{0});
    out = kernel_row(s, image + pixel * s.x_channels(), cols.last - cols.first, out);
    out = std::fill_n(out, (k.kernel_w - cols.last) * s.c, T{0});
  }
  std::fill_n(out, (k.kernel_h - rows.last) * line, T{0});
}

/// Copies the patch whose upper left corner is (y, x) in image[x_channels,h,w].
template <class T>
void patch_nchw(const PatchSpec& s, const T* image, std::int64_t y, std::int64_t x, T* out) {
  const ops::Window& k = s.window;
  const Overlap rows(y, k.kernel_h, k.dilation_h, s.h), cols(x, k.kernel_w, k.dilation_w, s.w);
  for (std::int64_t c = 0; c < s.c; ++c, image += s.h * s.w) {
    out = std::fill_n(out, rows.first * k.kernel_w, T{0});
    for (std::int64_t kh = rows.first; kh < rows.last; ++kh) {
      const T* line = image + (y + kh * k.dilation_h) * s.w;
      for (std::int64_t kw = 0; kw < k.kernel_w; ++kw) {
        *out++ = kw >= cols.first && kw < cols.last ? line[x + kw * k.dilation_w] : T{0};
      }
    }
    out = std::fill_n(out, (k.kernel_h - rows.last) * k.kernel_w, T{0});
  }
}

/// Copies `count` adjacent 1x1 patches of image[c,h,w], the first at (y, x): a transposition in
/// tiles whose lines stay in the L1 cache.
template <class T>
void points_nchw(const PatchSpec& s, const T* image, std::int64_t y, std::int64_t x,
                 std::int64_t count, Matrix<T> out) {
  constexpr std::int64_t kTile = 8;
  const T* line = image + y * s.w + x;
  for (std::int64_t c0 = 0; c0 < s.c; c0 += kTile) {
    const std::int64_t c1 = std::min(c0 + kTile, s.c);
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t c = c0; c < c1; ++c)
        out(i, c) = line[c * s.h * s.w + i * s.window.stride_w];
    }
  }
}

/// Copies patches [first, last), in the order (sample, row, column), to consecutive rows of `out`.
template <class T>
void fill_patches(const PatchSpec& s, const T* x, std::int64_t first, std::int64_t last,
                  Matrix<T> out) {
  const ops::Window& k = s.window;
  constexpr std::int64_t kSideBySide = 32;
  const bool nhwc = s.layout == Layout::nhwc;
  const bool points = !nhwc && k.taps() == 1 && s.padded_h() == s.h && s.padded_w() == s.w;
  const T* first_image = x + s.first_c * (nhwc ? 1 : s.h * s.w);
  const std::int64_t width = s.out_w(), positions = s.out_h() * width;
  for (std::int64_t i = first, count = 1; i < last; i += count) {
    const std::int64_t position = i % positions, column = position % width;
    const T* image = first_image + i / positions * (s.h * s.w * s.x_channels());
    const std::int64_t top = position / width * k.stride_h - k.pad_h;
    const std::int64_t left = column * k.stride_w - k.pad_w;
    const Matrix<T> rows = out.block(i - first, 0);
    if (nhwc) {
      patch_nhwc(s, image, top, left, rows.data);
    } else if (points) {
      count = std::min({kSideBySide, width - column, last - i});
      points_nchw(s, image, top, left, count, rows);
    } else {
      patch_nchw(s, image, top, left, rows.data);
    }
  }
}

}  // namespace

void fill_panel(const PatchSpec& s, ConstTensorView x, std::int64_t first, TensorView patches) {
  visit_computing(x.dtype(), [&]<class T>(Type<T>) {
    const auto out = matrix_of<T>(patches);
    const T* data = x.data<T>();
    const std::int64_t grain = std::max<std::int64_t>(kGrain / s.width(), 64);
    parallel_ranges(patches.dim(0), grain, [&](std::int64_t begin, std::int64_t end) {
      fill_patches(s, data, first + begin, first + end, out.block(begin, 0));
    });
  });
}

void im2col(Context&, const PatchSpec& spec, ConstTensorView x, TensorView patches) {
  fill_panel(spec, x, 0, patches);
}

}  // namespace dkfac::cpu
