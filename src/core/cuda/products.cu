#include <cublas_v2.h>

#include "core/checks.h"
#include "core/cpu/matrix.h"
#include "core/cuda/linalg_functors.h"
#include "core/cuda/products.h"
#include "core/shared/cuda/device_guard.h"
#include "core/shared/cuda/launch.cuh"

namespace dkfac::cuda {
namespace {

using cpu::row_stride;

cublasOperation_t operation(ops::Trans trans) {
  return trans == ops::Trans::yes ? CUBLAS_OP_T : CUBLAS_OP_N;
}

cudaDataType data_type(DType dtype) {
  if (dtype == DType::f64) return CUDA_R_64F;
  if (dtype == DType::f32) return CUDA_R_32F;
  return dtype == DType::f16 ? CUDA_R_16F : CUDA_R_16BF;
}

cublasComputeType_t compute_type(const Context& ctx, DType operands, Rounding rounding) {
  if (operands == DType::f64) return CUBLAS_COMPUTE_64F;
  const bool tf32 = operands == DType::f32 && rounding == Rounding::as_context && ctx.tf32();
  return tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

/// Calls call(&alpha, &beta) with scalars of the type of the sums.
template <class Call>
void with_scalars(DType sums, double alpha, double beta, Call call) {
  if (sums == DType::f64) return call(&alpha, &beta);
  const auto a = static_cast<float>(alpha), b = static_cast<float>(beta);
  call(&a, &b);
}

/// c = beta*c.
void scale(Context& ctx, double beta, TensorView c) {
  element::visit_computing(c.dtype(), [&]<class T>(element::Type<T>) {
    for_each_2d(ctx.stream(), c.dim(0) * c.dim(1), c.dim(2),
                ScaleRows<T>{c.data<T>(), c.dim(1), c.stride(0), row_stride(matrix_at(c, 0)),
                             static_cast<T>(beta)});
  });
}

/// Rows and columns of op(x).
std::int64_t rows_of(ops::Trans trans, ConstTensorView x) {
  return x.dim(trans == ops::Trans::yes ? 2 : 1);
}
std::int64_t cols_of(ops::Trans trans, ConstTensorView x) {
  return x.dim(trans == ops::Trans::yes ? 1 : 2);
}

}  // namespace

void check_batch(std::string_view op, const Context& ctx, ConstTensorView x, std::string_view name,
                 bool apart) {
  check_device(op, name, x, ctx.device());
  DKFAC_CHECK(x.ndim() == 3, "[", op, "] ", name, " is ", x.shape(),
              "; it must be a batch [count, rows, cols]");
  const ConstTensorView first = matrix_at(x, 0);
  check_matrix(op, name, first);
  const std::int64_t span = (x.dim(1) - 1) * row_stride(first) + x.dim(2);
  DKFAC_CHECK(!apart || x.dim(0) <= 1 || x.stride(0) >= span, "[", op, "] ", name, " ", x.shape(),
              " has batch stride ", x.stride(0), "; it must be at least ", span,
              ", the size of one matrix");
}

void check_product(std::string_view op, ops::Trans trans_a, ops::Trans trans_b, ConstTensorView a,
                   ConstTensorView b, ConstTensorView c) {
  const std::int64_t count = c.dim(0), k = cols_of(trans_a, a);
  DKFAC_CHECK(a.dim(0) == count && b.dim(0) == count, "[", op, "] a, b and c hold ", a.dim(0), ", ",
              b.dim(0), " and ", count, " matrices; they must hold as many");
  DKFAC_CHECK(k == rows_of(trans_b, b), "[", op, "] op(a) has ", k, " columns and op(b) ",
              rows_of(trans_b, b), " rows; they must agree");
  check_shape(op, "c", c, Shape{count, rows_of(trans_a, a), cols_of(trans_b, b)});
}

void multiply(Context& ctx, ops::Trans trans_a, ops::Trans trans_b, double alpha, ConstTensorView a,
              ConstTensorView b, double beta, TensorView c, Rounding rounding) {
  const DeviceGuard guard(ctx.device());
  const std::int64_t k = a.dim(trans_a == ops::Trans::yes ? 0 : 1);
  with_scalars(c.dtype(), alpha, beta, [&](const void* scale_product, const void* scale_old) {
    check_blas(cublasGemmEx_64(blas(ctx), operation(trans_b), operation(trans_a), c.dim(1),
                               c.dim(0), k, scale_product, b.raw(), data_type(b.dtype()),
                               row_stride(b), a.raw(), data_type(a.dtype()), row_stride(a),
                               scale_old, c.raw(), data_type(c.dtype()), row_stride(c),
                               compute_type(ctx, a.dtype(), rounding), CUBLAS_GEMM_DEFAULT),
               "cublasGemmEx");
  });
}

void multiply_batched(std::string_view op, Context& ctx, ops::Trans trans_a, ops::Trans trans_b,
                      double alpha, ConstTensorView a, ConstTensorView b, double beta, TensorView c,
                      Rounding rounding) {
  check_batch(op, ctx, a, "a", false);
  check_batch(op, ctx, b, "b", false);
  check_batch(op, ctx, c, "c", true);
  check_product(op, trans_a, trans_b, a, b, c);
  const std::int64_t count = c.dim(0), k = cols_of(trans_a, a);
  if (c.numel() == 0) return;
  if (k == 0 || alpha == 0) return scale(ctx, beta, c);
  if (count == 1) {
    return multiply(ctx, trans_a, trans_b, alpha, matrix_at(a, 0), matrix_at(b, 0), beta,
                    matrix_at(c, 0), rounding);
  }
  const DeviceGuard guard(ctx.device());
  const std::int64_t lda = row_stride(matrix_at(a, 0)), ldb = row_stride(matrix_at(b, 0));
  const std::int64_t ldc = row_stride(matrix_at(c, 0));
  with_scalars(c.dtype(), alpha, beta, [&](const void* scale_product, const void* scale_old) {
    check_blas(
        cublasGemmStridedBatchedEx_64(
            blas(ctx), operation(trans_b), operation(trans_a), c.dim(2), c.dim(1), k, scale_product,
            b.raw(), data_type(b.dtype()), ldb, b.stride(0), a.raw(), data_type(a.dtype()), lda,
            a.stride(0), scale_old, c.raw(), data_type(c.dtype()), ldc, c.stride(0), count,
            compute_type(ctx, a.dtype(), rounding), CUBLAS_GEMM_DEFAULT),
        "cublasGemmStridedBatchedEx");
  });
}

void multiply_each(Context& ctx, ops::Trans trans_a, ops::Trans trans_b, double alpha,
                   std::span<const MatrixProduct> products, double beta, TensorView addresses,
                   Rounding rounding) {
  const DeviceGuard guard(ctx.device());
  const auto& [a, b, c] = products.front();
  const auto count = static_cast<std::int64_t>(products.size());
  const std::int64_t k = a.dim(trans_a == ops::Trans::yes ? 0 : 1);
  auto** const there = static_cast<void**>(addresses.raw());
  with_scalars(c.dtype(), alpha, beta, [&](const void* scale_product, const void* scale_old) {
    check_blas(
        cublasGemmBatchedEx_64(blas(ctx), operation(trans_b), operation(trans_a), c.dim(1),
                               c.dim(0), k, scale_product, there, data_type(b.dtype()),
                               row_stride(b), there + count, data_type(a.dtype()), row_stride(a),
                               scale_old, there + 2 * count, data_type(c.dtype()), row_stride(c),
                               count, compute_type(ctx, a.dtype(), rounding), CUBLAS_GEMM_DEFAULT),
        "cublasGemmBatchedEx");
  });
}

}  // namespace dkfac::cuda
