#include <array>
#include <cstdint>

#include "dkfac/core/ops.h"

#include "core/backend_linalg.h"
#include "core/checks.h"

/// Checks once, answers the empty cases, and calls the backend of the context.
namespace dkfac::ops {
namespace {

using detail::check_computing;
using detail::check_device;
using detail::check_dtype;
using detail::check_shape;

void check_extents(std::string_view op, const PatchSpec& s) {
  struct Field {
    const char* name;
    std::int64_t value, least;
  };
  const std::array<Field, 14> fields = {{{"n", s.n, 0},
                                         {"h", s.h, 0},
                                         {"w", s.w, 0},
                                         {"c", s.c, 0},
                                         {"kernel_h", s.kernel_h, 1},
                                         {"kernel_w", s.kernel_w, 1},
                                         {"stride_h", s.stride_h, 1},
                                         {"stride_w", s.stride_w, 1},
                                         {"pad_h", s.pad_h, 0},
                                         {"pad_w", s.pad_w, 0},
                                         {"extra_h", s.extra_h, 0},
                                         {"extra_w", s.extra_w, 0},
                                         {"dilation_h", s.dilation_h, 1},
                                         {"dilation_w", s.dilation_w, 1}}};
  for (const Field& field : fields) {
    DKFAC_CHECK(field.value >= field.least, "[", op, "] ", field.name, " is ", field.value,
                "; it must be at least ", field.least);
  }
  DKFAC_CHECK(s.padded_h() >= s.span_h() && s.padded_w() >= s.span_w(), "[", op,
              "] the kernel spans ", s.span_h(), "x", s.span_w(), " and does not fit the image ",
              s.h, "x", s.w, ", padded ", s.padded_h(), "x", s.padded_w());
}

/// The spec itself, and x against it.
void check_image(std::string_view op, const Context& ctx, const PatchSpec& s, ConstTensorView x) {
  check_extents(op, s);
  check_device(op, ctx, x, "x");
  check_computing(op, x, "x");
  check_shape(op, x, "x",
              s.layout == Layout::nhwc ? Shape{s.n, s.h, s.w, s.c} : Shape{s.n, s.c, s.h, s.w});
  detail::check_contiguous(op, x, "x");
}

/// c[d,d] with d = width, or width + 1 for a bias.
void check_gram(std::string_view op, const Context& ctx, ConstTensorView x, std::int64_t width,
                ConstTensorView c) {
  check_device(op, ctx, c, "c");
  check_dtype(op, c, "c", x.dtype());
  detail::check_square(op, c, "c");
  DKFAC_CHECK(c.dim(0) == width || c.dim(0) == width + 1, "[", op, "] c is ", c.shape(),
              " for rows of width ", width, "; its order must be ", width, ", or ", width + 1,
              " with a bias");
}

}  // namespace

void im2col(Context& ctx, const PatchSpec& spec, ConstTensorView x, TensorView patches) {
  check_image("im2col", ctx, spec, x);
  check_device("im2col", ctx, patches, "patches");
  check_dtype("im2col", patches, "patches", x.dtype());
  detail::check_matrix("im2col", patches, "patches");
  check_shape("im2col", patches, "patches", Shape{spec.rows(), spec.width()});
  if (patches.numel() == 0) return;
  ctx.device().is_cuda() ? cuda::im2col(ctx, spec, x, patches) : cpu::im2col(ctx, spec, x, patches);
}

void patch_gram(Context& ctx, const PatchSpec& spec, double alpha, ConstTensorView x, double beta,
                TensorView c) {
  check_image("patch_gram", ctx, spec, x);
  check_gram("patch_gram", ctx, x, spec.width(), c);
  if (c.dim(0) == 0) return;
  if (ctx.device().is_cuda()) return cuda::patch_gram(ctx, spec, alpha, x, beta, c);
  if (spec.rows() == 0 || alpha == 0) return cpu::scale_lower(ctx, beta, c);
  cpu::patch_gram(ctx, spec, alpha, x, beta, c);
}

void gram(Context& ctx, double alpha, ConstTensorView x, double beta, TensorView c) {
  check_device("gram", ctx, x, "x");
  check_computing("gram", x, "x");
  detail::check_matrix("gram", x, "x");
  check_gram("gram", ctx, x, x.dim(1), c);
  if (c.dim(0) == 0) return;
  if (ctx.device().is_cuda()) return cuda::gram(ctx, alpha, x, beta, c);
  if (x.dim(0) == 0 || alpha == 0) return cpu::scale_lower(ctx, beta, c);
  cpu::gram(ctx, alpha, x, beta, c);
}

}  // namespace dkfac::ops
