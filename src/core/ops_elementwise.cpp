#include <cmath>

#include "dkfac/core/ops.h"

#include "core/backend.h"
#include "core/checks.h"

namespace dkfac::ops {
namespace {

void check_result(std::string_view op, const Context& ctx, ConstTensorView out) {
  check_device(op, "out", out, ctx.device());
  check_computing(op, "out", out);
  check_scalar(op, "out", out);
}

void check_counter(std::string_view op, const Context& ctx, ConstTensorView counter,
                   std::string_view name) {
  check_device(op, name, counter, ctx.device());
  check_dtype(op, name, counter, DType::f32);
  check_scalar(op, name, counter);
}

/// Requires two operands of one computing dtype and one shape.
void check_pair(std::string_view op, const Context& ctx, ConstTensorView x, std::string_view x_name,
                ConstTensorView y, std::string_view y_name) {
  check_device(op, x_name, x, ctx.device());
  check_device(op, y_name, y, ctx.device());
  check_computing(op, x_name, x);
  check_dtype(op, y_name, y, x.dtype());
  check_shape(op, y_name, y, x.shape());
}

void check_packed(std::string_view op, const Context& ctx, ConstTensorView packed, std::int64_t d) {
  check_device(op, "packed", packed, ctx.device());
  check_computing(op, "packed", packed);
  check_shape(op, "packed", packed, Shape{packed_size(d)});
  check_contiguous(op, "packed", packed);
}

}  // namespace

void copy(Context& ctx, ConstTensorView src, TensorView dst) {
  check_dtype("copy", "dst", dst, src.dtype());
  check_shape("copy", "dst", dst, src.shape());
  if (src.numel() == 0) return;
  check_memory("copy", "src", src);
  check_memory("copy", "dst", dst);
  if (src.device().is_cuda()) check_device("copy", "src", src, ctx.device());
  if (dst.device().is_cuda()) check_device("copy", "dst", dst, ctx.device());
  if (src.device().is_cuda() || dst.device().is_cuda()) return cuda::copy(ctx, src, dst);
  cpu::copy(ctx, src, dst);
}

void fill(Context& ctx, TensorView x, double value) {
  check_device("fill", "x", x, ctx.device());
  DKFAC_CHECK(x.dtype() != DType::i32 || (std::abs(value) < 0x1p31 && std::trunc(value) == value),
              "[fill] ", value, " is not a value of i32");
  if (x.numel() == 0) return;
  kernels::fill(ctx, x, value);
}

void cast(Context& ctx, ConstTensorView src, TensorView dst, double scale) {
  check_device("cast", "src", src, ctx.device());
  check_device("cast", "dst", dst, ctx.device());
  check_floating("cast", "src", src);
  check_floating("cast", "dst", dst);
  check_shape("cast", "dst", dst, src.shape());
  if (src.numel() == 0) return;
  kernels::cast(ctx, src, dst, scale);
}

void axpby(Context& ctx, double alpha, ConstTensorView x, double beta, TensorView y) {
  check_pair("axpby", ctx, x, "x", y, "y");
  if (x.numel() == 0) return;
  kernels::axpby(ctx, alpha, x, beta, y);
}

void copy_checked(Context& ctx, double scale, ConstTensorView src, TensorView dst,
                  TensorView nonfinite) {
  check_pair("copy_checked", ctx, src, "src", dst, "dst");
  check_counter("copy_checked", ctx, nonfinite, "nonfinite");
  if (src.numel() == 0) return;
  kernels::copy_checked(ctx, scale, src, dst, nonfinite);
}

void round_to(Context& ctx, DType type, double scale, ConstTensorView src, TensorView dst,
              TensorView underflow) {
  check_pair("round_to", ctx, src, "src", dst, "dst");
  DKFAC_CHECK(type != DType::i32, "[round_to] type is i32; it must be floating");
  check_counter("round_to", ctx, underflow, "underflow");
  if (src.numel() == 0) return;
  kernels::round_to(ctx, type, scale, src, dst, underflow);
}

void dot(Context& ctx, ConstTensorView x, ConstTensorView y, TensorView out) {
  check_pair("dot", ctx, x, "x", y, "y");
  check_result("dot", ctx, out);
  kernels::dot(ctx, x, y, out);
}

void sum(Context& ctx, ConstTensorView x, TensorView out) {
  check_device("sum", "x", x, ctx.device());
  check_computing("sum", "x", x);
  check_result("sum", ctx, out);
  kernels::sum(ctx, x, out);
}

void max_abs(Context& ctx, ConstTensorView x, TensorView out) {
  check_device("max_abs", "x", x, ctx.device());
  check_computing("max_abs", "x", x);
  check_result("max_abs", ctx, out);
  kernels::max_abs(ctx, x, out);
}

void col_sum(Context& ctx, double alpha, ConstTensorView x, double beta, TensorView out) {
  check_device("col_sum", "x", x, ctx.device());
  check_device("col_sum", "out", out, ctx.device());
  check_computing("col_sum", "x", x);
  check_matrix("col_sum", "x", x);
  check_dtype("col_sum", "out", out, x.dtype());
  check_shape("col_sum", "out", out, Shape{x.dim(1)});
  if (x.dim(1) == 0) return;
  kernels::col_sum(ctx, alpha, x, beta, out);
}

void count_nonfinite(Context& ctx, ConstTensorView x, TensorView count) {
  check_device("count_nonfinite", "x", x, ctx.device());
  check_computing("count_nonfinite", "x", x);
  check_counter("count_nonfinite", ctx, count, "count");
  if (x.numel() == 0) return;
  kernels::count_nonfinite(ctx, x, count);
}

void pack_lower(Context& ctx, ConstTensorView a, TensorView packed, TensorView nonfinite) {
  check_device("pack_lower", "a", a, ctx.device());
  check_square("pack_lower", "a", a);
  check_packed("pack_lower", ctx, packed, a.dim(0));
  check_dtype("pack_lower", "a", a, packed.dtype());
  if (!nonfinite.empty()) check_counter("pack_lower", ctx, nonfinite, "nonfinite");
  if (a.numel() == 0) return;
  kernels::pack_lower(ctx, a, packed, nonfinite);
}

void unpack_lower(Context& ctx, ConstTensorView packed, TensorView a, Upper upper) {
  check_device("unpack_lower", "a", a, ctx.device());
  check_square("unpack_lower", "a", a);
  check_packed("unpack_lower", ctx, packed, a.dim(0));
  check_dtype("unpack_lower", "a", a, packed.dtype());
  if (a.numel() == 0) return;
  kernels::unpack_lower(ctx, packed, a, upper);
}

void packed_trace(Context& ctx, ConstTensorView packed, std::int64_t d, TensorView out) {
  DKFAC_CHECK(d >= 0, "[packed_trace] d is ", d, "; it must be >= 0");
  check_packed("packed_trace", ctx, packed, d);
  check_result("packed_trace", ctx, out);
  kernels::packed_trace(ctx, packed, d, out);
}

}  // namespace dkfac::ops
