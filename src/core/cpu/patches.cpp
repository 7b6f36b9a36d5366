#include <algorithm>
#include <cstdint>

#include "dkfac/core/ops.h"

#include "core/backend.h"
#include "core/backend_linalg.h"
#include "core/cpu/matrix.h"
#include "core/cpu/parallel.h"

namespace dkfac::cpu {
namespace {

using ops::Layout;
using ops::PatchSpec;

/// Part of a kernel of `size` that lies inside an image of `extent` when it starts at `origin`.
struct Overlap {
  std::int64_t first, last;  ///< Kernel positions [first, last).
  Overlap(std::int64_t origin, std::int64_t size, std::int64_t extent)
      : first(std::clamp<std::int64_t>(-origin, 0, size)),
        last(std::clamp<std::int64_t>(extent - origin, first, size)) {}
};

/// Patch at (y, x), its upper left corner in image[h,w,c]: rows of the kernel are contiguous.
template <class T>
void patch_nhwc(const PatchSpec& s, const T* image, std::int64_t y, std::int64_t x, T* out) {
  const std::int64_t line = s.kernel_w * s.c;
  const Overlap rows(y, s.kernel_h, s.h), cols(x, s.kernel_w, s.w);
  out = std::fill_n(out, rows.first * line, T{0});
  for (std::int64_t kh = rows.first; kh < rows.last; ++kh) {
    const T* source = image + ((y + kh) * s.w + x + cols.first) * s.c;
    out = std::fill_n(out, cols.first * s.c, T{0});
    out = std::copy_n(source, (cols.last - cols.first) * s.c, out);
    out = std::fill_n(out, (s.kernel_w - cols.last) * s.c, T{0});
  }
  std::fill_n(out, (s.kernel_h - rows.last) * line, T{0});
}

/// The same in image[c,h,w].
template <class T>
void patch_nchw(const PatchSpec& s, const T* image, std::int64_t y, std::int64_t x, T* out) {
  const Overlap rows(y, s.kernel_h, s.h), cols(x, s.kernel_w, s.w);
  for (std::int64_t c = 0; c < s.c; ++c, image += s.h * s.w) {
    out = std::fill_n(out, rows.first * s.kernel_w, T{0});
    for (std::int64_t kh = rows.first; kh < rows.last; ++kh) {
      const T* source = image + (y + kh) * s.w + x;
      for (std::int64_t kw = 0; kw < s.kernel_w; ++kw) {
        *out++ = kw >= cols.first && kw < cols.last ? source[kw] : T{0};
      }
    }
    out = std::fill_n(out, (s.kernel_h - rows.last) * s.kernel_w, T{0});
  }
}

/// Patches [first, last) of the order (sample, row, column) into consecutive rows of `out`.
template <class T>
void fill_patches(const PatchSpec& s, const T* x, std::int64_t first, std::int64_t last,
                  Matrix<T> out) {
  const std::int64_t width = s.out_w(), positions = s.out_h() * width;
  for (std::int64_t i = first; i < last; ++i) {
    const std::int64_t position = i % positions;
    const T* image = x + i / positions * (s.h * s.w * s.c);
    const std::int64_t top = position / width * s.stride_h - s.pad_h;
    const std::int64_t left = position % width * s.stride_w - s.pad_w;
    T* row = &out(i - first, 0);
    s.layout == Layout::nhwc ? patch_nhwc(s, image, top, left, row)
                             : patch_nchw(s, image, top, left, row);
  }
}

/// Patches [first, first + patches.dim(0)), filled by all threads.
void fill_panel(const PatchSpec& s, ConstTensorView x, std::int64_t first, TensorView patches) {
  with_real(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto out = matrix_of<T>(patches);
    const T* data = x.data<T>();
    const std::int64_t grain = std::max<std::int64_t>(kGrain / s.width(), 64);
    parallel_ranges(patches.dim(0), grain, [&](std::int64_t begin, std::int64_t end) {
      fill_patches(s, data, first + begin, first + end, out.block(begin, 0));
    });
  });
}

/// c = alpha * [x 1]'[x 1] + beta*c but for the corner: whether there is a bias shows in c.
void gram_but_corner(Context& ctx, double alpha, ConstTensorView x, double beta, TensorView c) {
  const std::int64_t width = x.dim(1);
  if (width == 0) return;
  ops::syrk(ctx, alpha, x, beta, c.slice(0, 0, width).slice(1, 0, width));
  if (c.dim(0) == width) return;
  const TensorView sums = c.slice(0, width, 1).slice(1, 0, width);
  col_sum(ctx, alpha, x, beta, sums.reshape({width}));
}

/// The element that counts the rows, once and not panel by panel, so that it is exact.
void set_corner(double alpha, std::int64_t rows, double beta, TensorView c) {
  with_real(c.dtype(), [&](auto zero) {
    using T = decltype(zero);
    T& corner = matrix_of<T>(c)(c.dim(0) - 1, c.dim(0) - 1);
    const double before = beta == 0 ? 0 : beta * static_cast<double>(corner);
    corner = static_cast<T>(alpha * static_cast<double>(rows) + before);
  });
}

/// Rows of one panel: what fits half of a common second-level cache, but enough for the products
/// to outweigh one pass over c.
std::int64_t panel_rows(const PatchSpec& s, DType dtype) {
  constexpr std::int64_t kBytes = 512 * 1024, kLeast = 384;
  const std::int64_t row_bytes = s.width() * static_cast<std::int64_t>(size_of(dtype));
  return std::min(s.rows(), std::max(kBytes / row_bytes, kLeast));
}

/// A 1x1 kernel that visits every pixel once: the patches are the tensor as it lies.
bool is_plain(const PatchSpec& s) {
  return s.layout == Layout::nhwc && s.kernel_h == 1 && s.kernel_w == 1 && s.stride_h == 1 &&
         s.stride_w == 1 && s.pad_h == 0 && s.pad_w == 0;
}

}  // namespace

void im2col(Context&, const PatchSpec& spec, ConstTensorView x, TensorView patches) {
  fill_panel(spec, x, 0, patches);
}

void gram(Context& ctx, double alpha, ConstTensorView x, double beta, TensorView c) {
  gram_but_corner(ctx, alpha, x, beta, c);
  if (c.dim(0) > x.dim(1)) set_corner(alpha, x.dim(0), beta, c);
}

void patch_gram(Context& ctx, const PatchSpec& spec, double alpha, ConstTensorView x, double beta,
                TensorView c) {
  const std::int64_t rows = spec.rows(), width = spec.width();
  if (is_plain(spec)) return gram(ctx, alpha, x.reshape({rows, width}), beta, c);
  Scratch scratch(ctx);
  const std::int64_t step = panel_rows(spec, x.dtype());
  const TensorView panel = scratch.take({step, width}, x.dtype());
  for (std::int64_t first = 0; width > 0 && first < rows; first += step) {
    const TensorView patches = panel.slice(0, 0, std::min(step, rows - first));
    fill_panel(spec, x, first, patches);
    gram_but_corner(ctx, alpha, patches, first == 0 ? beta : 1.0, c);
  }
  if (c.dim(0) > width) set_corner(alpha, rows, beta, c);
}

}  // namespace dkfac::cpu
