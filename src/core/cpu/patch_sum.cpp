#include <algorithm>

#include "dkfac/core/ops.h"

#include "core/backend_linalg.h"
#include "core/cpu/matrix.h"
#include "core/shared/parallel.h"
#include "vectorized.h"

namespace dkfac::cpu {
namespace {

using ops::Layout;
using ops::PatchSpec;

/// Output positions [first, last) at which a kernel element, `offset` pixels after the origin of
/// its patch, is inside an image of `extent`.
struct Window {
  std::int64_t first, last;
  Window(std::int64_t offset, std::int64_t stride, std::int64_t extent, std::int64_t out)
      : first(std::min(ceil_of(-offset, stride), out)),
        last(std::clamp(ceil_of(extent - offset, stride), first, out)) {}

 private:
  static std::int64_t ceil_of(std::int64_t x, std::int64_t stride) {
    return x <= 0 ? 0 : (x + stride - 1) / stride;
  }
};

/// Computes the window sums of one image row for every column of the kernel: sums[kernel_w, c].
template <class T>
void sum_row(const PatchSpec& s, const T* row, std::int64_t pixel, std::int64_t channel, T* sums) {
  const ops::Window& w = s.window;
  for (std::int64_t k = 0; k < w.kernel_w; ++k, sums += s.c) {
    const std::int64_t offset = k * w.dilation_w - w.pad_w;
    const Window window(offset, w.stride_w, s.w, s.out_w());
    std::fill_n(sums, s.c, T{0});
    if (channel == 1) {
      for (std::int64_t o = window.first; o < window.last; ++o) {
        const T* from = row + (o * w.stride_w + offset) * pixel;
#pragma GCC ivdep
        for (std::int64_t c = 0; c < s.c; ++c) sums[c] += from[c];
      }
      continue;
    }
    for (std::int64_t c = 0; c < s.c; ++c) {
      const T* from = row + c * channel + offset * pixel;
      T sum{0};
      for (std::int64_t o = window.first; o < window.last; ++o) sum += from[o * w.stride_w * pixel];
      sums[c] = sum;
    }
  }
}

/// out[width] = scale * sum over the patches of one image, row by row of the image. All kernel rows
/// that reach an image row share its window sums.
template <class T>
void sum_image(const PatchSpec& s, const T* image, T scale, T* row_sums, T* out) {
  const ops::Window& w = s.window;
  const bool nhwc = s.layout == Layout::nhwc;
  const std::int64_t pixel = nhwc ? s.x_channels() : 1, channel = nhwc ? 1 : s.h * s.w;
  const std::int64_t taps = w.taps();
  image += s.first_c * channel;
  std::fill_n(out, s.width(), T{0});
  for (std::int64_t y = 0; y < s.h; ++y) {
    bool known = false;
    for (std::int64_t k = 0; k < w.kernel_h; ++k) {
      const std::int64_t top = y + w.pad_h - k * w.dilation_h;
      if (top < 0 || top % w.stride_h != 0 || top / w.stride_h >= s.out_h()) continue;
      if (!known) sum_row(s, image + y * s.w * pixel, pixel, channel, row_sums);
      known = true;
      if (nhwc) {
        T* to = out + k * w.kernel_w * s.c;
#pragma GCC ivdep
        for (std::int64_t i = 0; i < w.kernel_w * s.c; ++i) to[i] += row_sums[i];
        continue;
      }
      for (std::int64_t i = 0; i < w.kernel_w * s.c; ++i) {
        out[i % s.c * taps + k * w.kernel_w + i / s.c] += row_sums[i];
      }
    }
  }
  for (std::int64_t i = 0; i < s.width(); ++i) out[i] *= scale;
}

}  // namespace

void patch_sum(Context& ctx, const PatchSpec& s, double scale, ConstTensorView x, TensorView sums) {
  const std::int64_t elements = s.h * s.w * s.c;
  const auto parts = static_cast<int>(
      std::clamp<std::int64_t>(s.n * elements / kGrain, 1, std::min<std::int64_t>(s.n, threads())));
  visit_computing(x.dtype(), [&]<class T>(Type<T>) {
    Scratch scratch(ctx);
    const std::int64_t row = s.window.kernel_w * s.c;
    T* row_sums = scratch.take({parts, row}, dtype_of<T>).template data<T>();
    const T* images = x.data<T>();
    const auto out = matrix_of<T>(sums);
    parallel_parts(parts, [&](int part) {
      vectorized([&] {
        for (std::int64_t n = s.n * part / parts; n < s.n * (part + 1) / parts; ++n) {
          sum_image(s, images + n * s.h * s.w * s.x_channels(), static_cast<T>(scale),
                    row_sums + part * row, &out(n, 0));
        }
      });
    });
  });
}

}  // namespace dkfac::cpu
