#include <cstdint>

#include "dkfac/core/ops.h"

#include "core/backend_linalg.h"
#include "core/checks.h"
#include "core/cpu/denormals.h"

/// Operations that check arguments, handle empty cases, and call the backend of the context.
namespace dkfac::ops {
namespace {

/// Calls the implementation for the device and backend of the context.
template <class Device, class F, class... Args>
void dispatch(Context& ctx, const Device& cuda, F* fast, F* reference, const Args&... args) {
  if (ctx.device().is_cuda()) return cuda(ctx, args...);
  if (ctx.backend() == Backend::reference) return reference(ctx, args...);
  const cpu::FlushDenormals flush;
  fast(ctx, args...);
}

void check_operand(std::string_view op, const Context& ctx, ConstTensorView x,
                   std::string_view name) {
  check_device(op, name, x, ctx.device());
  check_computing(op, name, x);
  check_matrix(op, name, x);
}

void check_info(std::string_view op, const Context& ctx, ConstTensorView info) {
  check_device(op, "info", info, ctx.device());
  check_dtype(op, "info", info, DType::i32);
  check_scalar(op, "info", info);
}

void check_square_operand(std::string_view op, const Context& ctx, ConstTensorView x,
                          std::string_view name) {
  check_operand(op, ctx, x, name);
  check_square(op, name, x);
}

}  // namespace

void gemm(Context& ctx, Trans trans_a, Trans trans_b, double alpha, ConstTensorView a,
          ConstTensorView b, double beta, TensorView c) {
  check_operand("gemm", ctx, a, "a");
  check_operand("gemm", ctx, b, "b");
  check_operand("gemm", ctx, c, "c");
  check_dtype("gemm", "a", a, c.dtype());
  check_dtype("gemm", "b", b, c.dtype());
  const bool ta = trans_a == Trans::yes, tb = trans_b == Trans::yes;
  const std::int64_t m = a.dim(ta ? 1 : 0), k = a.dim(ta ? 0 : 1);
  const std::int64_t kb = b.dim(tb ? 1 : 0), n = b.dim(tb ? 0 : 1);
  DKFAC_CHECK(k == kb, "[gemm] op(a) is [", m, ", ", k, "] and op(b) is [", kb, ", ", n,
              "]; the inner sizes must agree");
  check_shape("gemm", "c", c, Shape{m, n});
  if (m == 0 || n == 0) return;
  if (k == 0 || alpha == 0) return kernels::scale_matrix(ctx, beta, c);
  dispatch(ctx, cuda::gemm, fast::gemm, reference::gemm, trans_a, trans_b, alpha, a, b, beta, c);
}

void syrk(Context& ctx, double alpha, ConstTensorView x, double beta, TensorView c) {
  check_operand("syrk", ctx, x, "x");
  check_square_operand("syrk", ctx, c, "c");
  check_dtype("syrk", "x", x, c.dtype());
  check_shape("syrk", "c", c, Shape{x.dim(1), x.dim(1)});
  if (c.dim(0) == 0) return;
  if (x.dim(0) == 0 || alpha == 0) return kernels::scale_lower(ctx, beta, c);
  dispatch(ctx, cuda::syrk, fast::syrk, reference::syrk, alpha, x, beta, c);
}

void symmetrize(Context& ctx, TensorView a) {
  check_square_operand("symmetrize", ctx, a, "a");
  if (a.dim(0) == 0) return;
  kernels::symmetrize(ctx, a);
}

void add_diagonal(Context& ctx, TensorView a, double value) {
  check_square_operand("add_diagonal", ctx, a, "a");
  if (a.dim(0) == 0) return;
  kernels::add_diagonal(ctx, a, value);
}

void potrf(Context& ctx, TensorView a, TensorView info) {
  check_square_operand("potrf", ctx, a, "a");
  check_info("potrf", ctx, info);
  dispatch(ctx, cuda::potrf, fast::potrf, reference::potrf, a, info);
}

void potri(Context& ctx, TensorView a, TensorView info) {
  check_square_operand("potri", ctx, a, "a");
  check_info("potri", ctx, info);
  dispatch(ctx, cuda::potri, fast::potri, reference::potri, a, info);
}

void eigh(Context& ctx, TensorView a, TensorView w, TensorView info) {
  check_square_operand("eigh", ctx, a, "a");
  check_device("eigh", "w", w, ctx.device());
  check_dtype("eigh", "w", w, a.dtype());
  check_shape("eigh", "w", w, Shape{a.dim(0)});
  check_contiguous("eigh", "w", w);
  check_info("eigh", ctx, info);
  dispatch(ctx, cuda::eigh, fast::eigh, reference::eigh, a, w, info);
}

}  // namespace dkfac::ops
