#include "core/cpu/patches.h"

#include <algorithm>
#include <cstdint>

#include "dkfac/core/ops.h"

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

}  // namespace

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

void im2col(Context&, const PatchSpec& spec, ConstTensorView x, TensorView patches) {
  fill_panel(spec, x, 0, patches);
}

}  // namespace dkfac::cpu
