#include <array>
#include <cstdint>

#include "dkfac/core/ops.h"

#include "core/backend_linalg.h"
#include "core/checks.h"
#include "core/cpu/matrix.h"
#include "core/cpu/patch_method.h"
#include "core/cuda/patch_cost.h"

/// Operations that check arguments, handle empty cases, and call the backend of the context.
namespace dkfac::ops {
namespace {

void check_extents(std::string_view op, const PatchSpec& s) {
  struct Field {
    const char* name;
    std::int64_t value, least;
  };
  const Window& k = s.window;
  const std::array<Field, 16> fields = {{{"n", s.n, 0},
                                         {"h", s.h, 0},
                                         {"w", s.w, 0},
                                         {"c", s.c, 0},
                                         {"kernel_h", k.kernel_h, 1},
                                         {"kernel_w", k.kernel_w, 1},
                                         {"stride_h", k.stride_h, 1},
                                         {"stride_w", k.stride_w, 1},
                                         {"pad_h", k.pad_h, 0},
                                         {"pad_w", k.pad_w, 0},
                                         {"extra_h", k.extra_h, 0},
                                         {"extra_w", k.extra_w, 0},
                                         {"dilation_h", k.dilation_h, 1},
                                         {"dilation_w", k.dilation_w, 1},
                                         {"x_c", s.x_c, 0},
                                         {"first_c", s.first_c, 0}}};
  for (const Field& field : fields) {
    DKFAC_CHECK(field.value >= field.least, "[", op, "] ", field.name, " is ", field.value,
                "; it must be at least ", field.least);
  }
  DKFAC_CHECK(s.first_c + s.c <= s.x_channels(), "[", op, "] channels ", s.first_c, " to ",
              s.first_c + s.c, " are asked for; x has ", s.x_channels());
  DKFAC_CHECK(k.fits(s.h, s.w), "[", op, "] the kernel spans ", k.span_h(), "x", k.span_w(),
              " and does not fit the image ", s.h, "x", s.w, ", padded ", s.padded_h(), "x",
              s.padded_w());
}

/// Dtype of sums over x.
DType dtype_of_sums(ConstTensorView x) { return x.dtype() == DType::f64 ? DType::f64 : DType::f32; }

/// Requires a computing dtype, or a 16-bit one on a device.
void check_operand(std::string_view op, const Context& ctx, ConstTensorView x) {
  check_device(op, "x", x, ctx.device());
  if (ctx.device().is_cuda() && (x.dtype() == DType::f16 || x.dtype() == DType::bf16)) return;
  check_computing(op, "x", x);
}

/// Checks the spec, and x against it.
void check_image(std::string_view op, const Context& ctx, const PatchSpec& s, ConstTensorView x) {
  check_extents(op, s);
  check_operand(op, ctx, x);
  check_shape(op, "x", x,
              s.layout == Layout::nhwc ? Shape{s.n, s.h, s.w, s.x_channels()}
                                       : Shape{s.n, s.x_channels(), s.h, s.w});
  check_contiguous(op, "x", x);
}

/// Requires c[d,d] with d = width, or width + 1 for a bias.
void check_gram(std::string_view op, const Context& ctx, ConstTensorView x, std::int64_t width,
                ConstTensorView c) {
  check_device(op, "c", c, ctx.device());
  check_dtype(op, "c", c, dtype_of_sums(x));
  check_square(op, "c", c);
  DKFAC_CHECK(c.dim(0) == width || c.dim(0) == width + 1, "[", op, "] c is ", c.shape(),
              " for rows of width ", width, "; its order must be ", width, ", or ", width + 1,
              " with a bias");
}

}  // namespace

void im2col(Context& ctx, const PatchSpec& spec, ConstTensorView x, TensorView patches) {
  check_image("im2col", ctx, spec, x);
  check_device("im2col", "patches", patches, ctx.device());
  check_dtype("im2col", "patches", patches, x.dtype());
  check_matrix("im2col", "patches", patches);
  check_shape("im2col", "patches", patches, Shape{spec.rows(), spec.width()});
  if (patches.numel() == 0) return;
  kernels::im2col(ctx, spec, x, patches);
}

bool patch_method_applies(const Context& ctx, const PatchSpec& spec, DType dtype,
                          PatchMethod method) {
  return ctx.device().is_cuda() ? cuda::applies(spec, method) : cpu::applies(spec, dtype, method);
}

void patch_gram(Context& ctx, const PatchSpec& spec, double alpha, ConstTensorView x, double beta,
                TensorView c, PatchMethod method) {
  check_image("patch_gram", ctx, spec, x);
  const std::int64_t groups = c.ndim() == 3 ? c.dim(0) : 1;
  DKFAC_CHECK(groups > 0 && spec.c % groups == 0, "[patch_gram] c is ", c.shape(), " for ", spec.c,
              " channels; the number of groups must divide them");
  const auto matrix = [&](std::int64_t group) {
    return c.ndim() == 3 ? cpu::matrix_at(c, group) : c;
  };
  check_gram("patch_gram", ctx, x, spec.width() / groups, matrix(0));
  DKFAC_CHECK(method == PatchMethod::automatic ||
                  (c.ndim() == 2 && patch_method_applies(ctx, spec, x.dtype(), method)),
              "[patch_gram] method ", static_cast<int>(method), " does not apply to ", x.dtype(),
              " images ", x.shape(), " under a ", spec.window.kernel_h, "x", spec.window.kernel_w,
              " kernel; ask patch_method_applies() first");
  if (c.numel() == 0) return;
  if (spec.rows() == 0 || alpha == 0) {
    for (std::int64_t i = 0; i < groups; ++i) kernels::scale_lower(ctx, beta, matrix(i));
    return;
  }
  kernels::patch_gram(ctx, spec, alpha, x, beta, c, method);
}

void patch_sum(Context& ctx, const PatchSpec& spec, double scale, ConstTensorView x,
               TensorView sums) {
  check_image("patch_sum", ctx, spec, x);
  check_device("patch_sum", "sums", sums, ctx.device());
  check_dtype("patch_sum", "sums", sums, dtype_of_sums(x));
  check_matrix("patch_sum", "sums", sums);
  check_shape("patch_sum", "sums", sums, Shape{spec.n, spec.width()});
  if (sums.numel() == 0) return;
  kernels::patch_sum(ctx, spec, scale, x, sums);
}

void gram(Context& ctx, double alpha, ConstTensorView x, double beta, TensorView c) {
  check_operand("gram", ctx, x);
  check_matrix("gram", "x", x);
  check_gram("gram", ctx, x, x.dim(1), c);
  if (c.dim(0) == 0) return;
  if (x.dim(0) == 0 || alpha == 0) return kernels::scale_lower(ctx, beta, c);
  kernels::gram(ctx, alpha, x, beta, c);
}

}  // namespace dkfac::ops
