#include <cublas_v2.h>
#include <cusolverDn.h>

#include "core/checks.h"
#include "core/cpu/matrix.h"
#include "core/cuda/cholesky.h"
#include "core/cuda/linalg_functors.h"
#include "core/cuda/products.h"
#include "core/cuda/solver_call.h"
#include "core/shared/cuda/batched.h"
#include "core/shared/cuda/device_guard.h"
#include "core/shared/cuda/launch.cuh"

namespace dkfac::cuda {
namespace {

using cpu::row_stride;

void check_square_batch(std::string_view op, const Context& ctx, ConstTensorView x,
                        std::string_view name) {
  check_batch(op, ctx, x, name, true);
  dkfac::detail::check_computing(op, x, name);
  DKFAC_CHECK(x.dim(1) == x.dim(2), "[", op, "] ", name, " is ", x.shape(),
              "; its matrices must be square");
}

/// Returns the addresses of the matrices of a batch, in device memory.
template <class T, class View>
T** addresses(Context& ctx, Scratch& scratch, const View& batch) {
  static_assert(sizeof(T*) == sizeof(double));
  auto** to = static_cast<T**>(scratch.take({batch.dim(0)}, DType::f64).raw());
  for_each(ctx.stream(), batch.dim(0),
           Addresses<T>{to, batch.template data<std::remove_const_t<T>>(), batch.stride(0)});
  return to;
}

template <class T, class Potrf>
void factor(Context& ctx, Potrf* potrf, TensorView a, TensorView info, const char* call) {
  Scratch scratch(ctx);
  check_solver(
      potrf(solver(ctx), CUBLAS_FILL_MODE_UPPER, solver_int("potrf_batched", a.dim(1)),
            addresses<T>(ctx, scratch, a), solver_int("potrf_batched", row_stride(matrix_at(a, 0))),
            info.data<std::int32_t>(), solver_int("potrf_batched", a.dim(0))),
      call);
}

/// Inverts from Cholesky factors. The column-major cuBLAS sees the upper factor u of u'u; it solves
/// u' y = 1 for y = u'^-1, and y'y is the inverse.
template <class T, class Trsm>
void invert(Context& ctx, Trsm* trsm, ConstTensorView factor, TensorView inverse,
            const char* call) {
  const std::int64_t count = factor.dim(0), d = factor.dim(1);
  const int order = solver_int("potri_batched", d);
  Scratch scratch(ctx);
  const TensorView y = scratch.take({count, d, d}, factor.dtype());
  for_each_2d(ctx.stream(), count * d, d, SetIdentity<T>{y.data<T>(), d, y.stride(0), d});
  const T one{1};
  check_blas(
      trsm(blas(ctx), CUBLAS_SIDE_LEFT, CUBLAS_FILL_MODE_UPPER, CUBLAS_OP_T, CUBLAS_DIAG_NON_UNIT,
           order, order, &one, addresses<const T>(ctx, scratch, factor),
           solver_int("potri_batched", row_stride(matrix_at(factor, 0))),
           addresses<T>(ctx, scratch, y), order, solver_int("potri_batched", count)),
      call);
  // In row-major order y is the transpose.
  multiply_batched("potri_batched", ctx, ops::Trans::no, ops::Trans::yes, 1, y, y, 0, inverse,
                   Rounding::none);
  const std::int64_t row = row_stride(matrix_at(inverse, 0));
  for_each_transposed<T>(ctx.stream(), count * d, d,
                         LoadLower<T>{inverse.data<T>(), d, inverse.stride(0), row},
                         StoreUpper<T>{inverse.data<T>(), d, inverse.stride(0), row});
}

}  // namespace

void gemm_batched(Context& ctx, ops::Trans trans_a, ops::Trans trans_b, double alpha,
                  ConstTensorView a, ConstTensorView b, double beta, TensorView c) {
  dkfac::detail::check_computing("gemm_batched", c, "c");
  dkfac::detail::check_dtype("gemm_batched", a, "a", c.dtype());
  dkfac::detail::check_dtype("gemm_batched", b, "b", c.dtype());
  multiply_batched("gemm_batched", ctx, trans_a, trans_b, alpha, a, b, beta, c,
                   Rounding::as_context);
}

void potrf_batched(Context& ctx, TensorView a, TensorView info) {
  check_square_batch("potrf_batched", ctx, a, "a");
  dkfac::detail::check_device("potrf_batched", ctx, info, "info");
  dkfac::detail::check_dtype("potrf_batched", info, "info", DType::i32);
  dkfac::detail::check_shape("potrf_batched", info, "info", Shape{a.dim(0)});
  dkfac::detail::check_contiguous("potrf_batched", info, "info");
  const DeviceGuard guard(ctx.device());
  if (a.dim(0) == 0) return;
  if (a.dim(1) == 0) return clear_status(ctx, info);
  if (a.dtype() == DType::f64) {
    factor<double>(ctx, cusolverDnDpotrfBatched, a, info, "cusolverDnDpotrfBatched");
  } else {
    factor<float>(ctx, cusolverDnSpotrfBatched, a, info, "cusolverDnSpotrfBatched");
  }
  report_bad_pivots(ctx, a, info);
}

void potri_batched(Context& ctx, ConstTensorView factor, TensorView inverse) {
  check_square_batch("potri_batched", ctx, factor, "factor");
  check_square_batch("potri_batched", ctx, inverse, "inverse");
  dkfac::detail::check_dtype("potri_batched", factor, "factor", inverse.dtype());
  dkfac::detail::check_shape("potri_batched", inverse, "inverse", factor.shape());
  const DeviceGuard guard(ctx.device());
  if (factor.numel() == 0) return;
  if (factor.dtype() == DType::f64) {
    invert<double>(ctx, cublasDtrsmBatched, factor, inverse, "cublasDtrsmBatched");
  } else {
    invert<float>(ctx, cublasStrsmBatched, factor, inverse, "cublasStrsmBatched");
  }
}

}  // namespace dkfac::cuda
