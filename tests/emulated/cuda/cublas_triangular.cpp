#include <vector>

#include <cublas_v2.h>

#include "arithmetic.h"
#include "column_major.h"
#include "emulated/work_log.h"
#include "handles.h"

// Triangular solves of cuBLAS.
namespace {

using emulated::ColumnMajor;
using emulated::least_ld;

/// A solve op(A) X = alpha B or X op(A) = alpha B, X over B[m,n]. The second is op(A)' X' = alpha
/// B'.
struct Solve {
  bool left, lower, transposed, unit;
  std::int64_t m, n;

  /// Logs `count` solves with elements of `size` bytes.
  void log(const char* name, int count, std::size_t size) const {
    const auto order = static_cast<double>(left ? m : n), elements = static_cast<double>(m * n);
    emulated::log_work({name, count * order * elements,
                        count * (order * order + elements) * static_cast<double>(size)});
  }

  template <class T>
  void run(double alpha, ColumnMajor<const T> a, ColumnMajor<T> b) const {
    const bool flipped = left == transposed;  // Whether the matrix of the solve is A'.
    const std::int64_t order = left ? m : n, vectors = left ? n : m;
    const bool forward = lower != flipped;
    std::vector<double> matrix(static_cast<std::size_t>(order * order));
    for (std::int64_t i = 0; i < order; ++i) {
      const std::int64_t first = forward ? 0 : unit ? i + 1 : i, end = forward ? i + !unit : order;
      for (std::int64_t j = first; j < end; ++j)
        matrix[static_cast<std::size_t>(i * order + j)] = flipped ? a(j, i) : a(i, j);
    }
    std::vector<T> x(static_cast<std::size_t>(order));
    for (std::int64_t v = 0; v < vectors; ++v) {
      const auto of_b = [&](std::int64_t i) -> T& { return left ? b(i, v) : b(v, i); };
      for (std::int64_t i = 0; i < order; ++i) x[static_cast<std::size_t>(i)] = of_b(i);
      emulated::arithmetic::solve(forward, unit, order, alpha, matrix.data(), x.data());
      for (std::int64_t i = 0; i < order; ++i) of_b(i) = x[static_cast<std::size_t>(i)];
    }
  }
};

template <class T>
cublasStatus_t solve_batched(cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t uplo,
                             cublasOperation_t trans, cublasDiagType_t diag, int m, int n,
                             const T* alpha, const T* const a[], int lda, T* const b[], int ldb,
                             int count) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  const bool left = side == CUBLAS_SIDE_LEFT;
  if (m < 0 || n < 0 || count < 0 || alpha == nullptr || lda < least_ld(left ? m : n) ||
      ldb < least_ld(m) || (uplo != CUBLAS_FILL_MODE_LOWER && uplo != CUBLAS_FILL_MODE_UPPER))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (m == 0 || n == 0 || count == 0) return CUBLAS_STATUS_SUCCESS;
  emulated::require_device(a, "cublas<t>trsmBatched");
  emulated::require_device(b, "cublas<t>trsmBatched");
  const Solve solve{
      left, uplo == CUBLAS_FILL_MODE_LOWER, trans != CUBLAS_OP_N, diag == CUBLAS_DIAG_UNIT, m, n};
  solve.log("cublas trsm batched", count, sizeof(T));
  const bool on_device = handle->device_scalars;
  const T now = on_device ? T{} : *alpha;
  emulated::submit(handle->stream, [=] {
    const T scale = on_device ? *alpha : now;
    for (int i = 0; i < count; ++i)
      solve.run<T>(scale, ColumnMajor<const T>{a[i], lda}, ColumnMajor<T>{b[i], ldb});
  });
  return CUBLAS_STATUS_SUCCESS;
}

template <class T>
cublasStatus_t solve_one(cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t uplo,
                         cublasOperation_t trans, cublasDiagType_t diag, int m, int n,
                         const T* alpha, const T* a, int lda, T* b, int ldb) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  const bool left = side == CUBLAS_SIDE_LEFT;
  if (m < 0 || n < 0 || alpha == nullptr || lda < least_ld(left ? m : n) || ldb < least_ld(m) ||
      (uplo != CUBLAS_FILL_MODE_LOWER && uplo != CUBLAS_FILL_MODE_UPPER))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (m == 0 || n == 0) return CUBLAS_STATUS_SUCCESS;
  emulated::require_device(a, "cublas<t>trsm");
  emulated::require_device(b, "cublas<t>trsm");
  const Solve solve{
      left, uplo == CUBLAS_FILL_MODE_LOWER, trans != CUBLAS_OP_N, diag == CUBLAS_DIAG_UNIT, m, n};
  solve.log("cublas trsm", 1, sizeof(T));
  const bool on_device = handle->device_scalars;
  const T now = on_device ? T{} : *alpha;
  emulated::submit(handle->stream, [=] {
    solve.run<T>(on_device ? *alpha : now, ColumnMajor<const T>{a, lda}, ColumnMajor<T>{b, ldb});
  });
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

cublasStatus_t cublasStrsm_v2(cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t uplo,
                              cublasOperation_t trans, cublasDiagType_t diag, int m, int n,
                              const float* alpha, const float* A, int lda, float* B, int ldb) {
  return solve_one(handle, side, uplo, trans, diag, m, n, alpha, A, lda, B, ldb);
}
cublasStatus_t cublasDtrsm_v2(cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t uplo,
                              cublasOperation_t trans, cublasDiagType_t diag, int m, int n,
                              const double* alpha, const double* A, int lda, double* B, int ldb) {
  return solve_one(handle, side, uplo, trans, diag, m, n, alpha, A, lda, B, ldb);
}

cublasStatus_t cublasStrsmBatched(cublasHandle_t handle, cublasSideMode_t side,
                                  cublasFillMode_t uplo, cublasOperation_t trans,
                                  cublasDiagType_t diag, int m, int n, const float* alpha,
                                  const float* const A[], int lda, float* const B[], int ldb,
                                  int batchCount) {
  return solve_batched(handle, side, uplo, trans, diag, m, n, alpha, A, lda, B, ldb, batchCount);
}
cublasStatus_t cublasDtrsmBatched(cublasHandle_t handle, cublasSideMode_t side,
                                  cublasFillMode_t uplo, cublasOperation_t trans,
                                  cublasDiagType_t diag, int m, int n, const double* alpha,
                                  const double* const A[], int lda, double* const B[], int ldb,
                                  int batchCount) {
  return solve_batched(handle, side, uplo, trans, diag, m, n, alpha, A, lda, B, ldb, batchCount);
}

}  // extern "C"
