#include <algorithm>
#include <cstdint>

#include <cublas_v2.h>
#include <cusolverDn.h>

#include "core/checks.h"
#include "core/cpu/matrix.h"
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
  check_computing(op, name, x);
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

/// Address i in the order of multiply_each().
const void* address(std::span<const MatrixProduct> products, std::size_t i) {
  const MatrixProduct& p = products[i % products.size()];
  const std::size_t operand = i / products.size();
  return operand == 0 ? p.b.raw() : operand == 1 ? p.a.raw() : p.c.raw();
}

/// Whether the products may be one call of multiply_each().
bool may_be_together(std::span<const MatrixProduct> products, double alpha) {
  const auto& [a, b, c] = products.front();
  if (products.size() < 2 || alpha == 0 || a.numel() == 0 || b.numel() == 0) return false;
  for (std::size_t i = 0; i < 3 * products.size(); ++i)
    if (reinterpret_cast<std::uintptr_t>(address(products, i)) % 16 != 0) return false;
  return true;
}

void write_addresses(Context& ctx, std::span<const MatrixProduct> products,
                     MatrixAddresses& addresses) {
  const std::size_t count = 3 * products.size();
  bool moved = addresses.written.size() != count;
  for (std::size_t i = 0; !moved && i < count; ++i)
    moved = addresses.written[i] != address(products, i);
  if (!moved) return;
  addresses.written.clear();  // In case of an exception.
  static_assert(sizeof(void*) == sizeof(double));
  const auto words = static_cast<std::int64_t>(count);
  if (!addresses.there.is_set() || addresses.there.numel() < words)
    addresses.there = Tensor::empty(ctx, {words}, DType::f64);
  auto** to = static_cast<const void**>(addresses.there.view().raw());
  for (std::int64_t first = 0; first < words; first += WriteAddresses::kMost) {
    const std::int64_t part = std::min(words - first, WriteAddresses::kMost);
    WriteAddresses write{{}, to + first};
    for (std::int64_t i = 0; i < part; ++i)
      write.from[i] = address(products, static_cast<std::size_t>(first + i));
    for_each(ctx.stream(), part, write);
  }
  for (std::size_t i = 0; i < count; ++i) addresses.written.push_back(address(products, i));
}

void check_alike(ConstTensorView x, ConstTensorView first, std::string_view name) {
  check_shape("gemm_each", name, x, first.shape());
  check_dtype("gemm_each", name, x, first.dtype());
  DKFAC_CHECK(row_stride(x) == row_stride(first), "[gemm_each] ", name, " has row stride ",
              row_stride(x), " and that of the first product ", row_stride(first),
              "; they must be equal");
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
  check_computing("gemm_batched", "c", c);
  check_dtype("gemm_batched", "a", a, c.dtype());
  check_dtype("gemm_batched", "b", b, c.dtype());
  multiply_batched("gemm_batched", ctx, trans_a, trans_b, alpha, a, b, beta, c,
                   Rounding::as_context);
}

void gemm_each(Context& ctx, ops::Trans trans_a, ops::Trans trans_b, double alpha,
               std::span<const MatrixProduct> products, double beta, MatrixAddresses& addresses) {
  if (products.empty()) return;
  const auto alone = [&](const MatrixProduct& p) {
    gemm_batched(ctx, trans_a, trans_b, alpha, batch_of(p.a), batch_of(p.b), beta, batch_of(p.c));
  };
  const MatrixProduct& first = products.front();
  for (const auto& [a, b, c] : products) {
    check_batch("gemm_each", ctx, batch_of(a), "a", false);
    check_batch("gemm_each", ctx, batch_of(b), "b", false);
    check_batch("gemm_each", ctx, batch_of(c), "c", false);
    check_alike(a, first.a, "a");
    check_alike(b, first.b, "b");
    check_alike(c, first.c, "c");
  }
  check_computing("gemm_each", "c", first.c);
  check_dtype("gemm_each", "a", first.a, first.c.dtype());
  check_dtype("gemm_each", "b", first.b, first.c.dtype());
  if (!may_be_together(products, alpha)) {
    for (const MatrixProduct& p : products) alone(p);
    return;
  }
  check_product("gemm_each", trans_a, trans_b, batch_of(first.a), batch_of(first.b),
                batch_of(first.c));
  const DeviceGuard guard(ctx.device());
  write_addresses(ctx, products, addresses);
  multiply_each(ctx, trans_a, trans_b, alpha, products, beta, addresses.there,
                Rounding::as_context);
}

void potrf_batched(Context& ctx, TensorView a, TensorView info) {
  check_square_batch("potrf_batched", ctx, a, "a");
  check_device("potrf_batched", "info", info, ctx.device());
  check_dtype("potrf_batched", "info", info, DType::i32);
  check_shape("potrf_batched", "info", info, Shape{a.dim(0)});
  check_contiguous("potrf_batched", "info", info);
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
  check_dtype("potri_batched", "factor", factor, inverse.dtype());
  check_shape("potri_batched", "inverse", inverse, factor.shape());
  const DeviceGuard guard(ctx.device());
  if (factor.numel() == 0) return;
  if (factor.dtype() == DType::f64) {
    invert<double>(ctx, cublasDtrsmBatched, factor, inverse, "cublasDtrsmBatched");
  } else {
    invert<float>(ctx, cublasStrsmBatched, factor, inverse, "cublasStrsmBatched");
  }
}

}  // namespace dkfac::cuda
