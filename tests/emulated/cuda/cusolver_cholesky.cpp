#include <limits>
#include <vector>

#include "arithmetic.h"
#include "cusolver_calls.h"
#include "emulated/work_log.h"

// Cholesky factorizations and inverses of cuSOLVER. A NaN is accepted as a positive pivot, as the
// library promises nothing else.
namespace {

using emulated::ColumnMajor;
using emulated::least_ld;

/// Calls f(triangle) with a copy of the lower triangle of A, or of the upper one's transpose, row
/// after row, and stores the copy.
template <class T, class F>
void in_copy(bool lower, std::int64_t n, ColumnMajor<T> a, const F& f) {
  std::vector<T> copy(static_cast<std::size_t>(n * n));
  const auto each = [&](const auto& move) {
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t j = 0; j <= i; ++j)
        move(copy[static_cast<std::size_t>(i * n + j)], lower ? a(i, j) : a(j, i));
  };
  each([](T& to, T from) { to = from; });
  f(copy.data());
  each([](T from, T& to) { to = from; });
}

/// A = L L' (lower) or U' U (upper) in place. Returns 0, or the order of the first minor that is
/// not positive definite.
template <class T>
int factor(bool lower, std::int64_t n, ColumnMajor<T> a) {
  int failed = 0;
  in_copy(lower, n, a, [&](T* l) { failed = emulated::arithmetic::cholesky(n, l); });
  return failed;
}

/// Writes the inverse of L L' (lower) or U' U (upper) over its factor. Returns 0, or without any
/// effect the position of the first zero on the diagonal.
template <class T>
int invert(bool lower, std::int64_t n, ColumnMajor<T> a) {
  for (std::int64_t i = 0; i < n; ++i) {
    if (a(i, i) == T{0}) return static_cast<int>(i + 1);
  }
  std::vector<double> work(static_cast<std::size_t>(n * n));
  in_copy(lower, n, a, [&](T* l) { emulated::arithmetic::invert(n, l, work.data()); });
  return 0;
}

/// Logs `count` factorisations of width n, n^3/3 operations each, or inversions of their factors,
/// twice as many.
void log_cholesky(const char* name, double thirds, std::int64_t n, std::int64_t size, int count) {
  const auto width = static_cast<double>(n);
  emulated::log_work({name, count * thirds * width * width * width / 3,
                      count * width * width * static_cast<double>(size)});
}

template <class T>
cusolverStatus_t potri_size(cusolverDnHandle_t handle, cublasFillMode_t uplo, int n, int lda,
                            int* lwork) {
  if (handle == nullptr) return CUSOLVER_STATUS_NOT_INITIALIZED;
  if (n < 0 || lda < least_ld(n) || !emulated::known_fill(uplo) || lwork == nullptr)
    return CUSOLVER_STATUS_INVALID_VALUE;
  *lwork = 16 + n;
  return CUSOLVER_STATUS_SUCCESS;
}

template <class T>
cusolverStatus_t potri(cusolverDnHandle_t handle, cublasFillMode_t uplo, int n, T* a, int lda,
                       T* work, int lwork, int* info) {
  if (handle == nullptr) return CUSOLVER_STATUS_NOT_INITIALIZED;
  if (n < 0 || lda < least_ld(n) || !emulated::known_fill(uplo) || lwork < 16 + n)
    return CUSOLVER_STATUS_INVALID_VALUE;
  emulated::require_status(info, "cusolverDn<t>potri");
  if (n > 0) emulated::require_device(a, "cusolverDn<t>potri");
  emulated::require_device(work, "cusolverDn<t>potri");
  log_cholesky("cusolver potri", 2, n, sizeof(T), 1);
  emulated::submit(handle->stream, [=] {
    std::memset(work, 0xff, static_cast<std::size_t>(lwork) * sizeof(T));
    *info = invert<T>(uplo == CUBLAS_FILL_MODE_LOWER, n, {a, lda});
  });
  return CUSOLVER_STATUS_SUCCESS;
}

/// The other triangles are workspace.
template <class T>
cusolverStatus_t potrf_batched(cusolverDnHandle_t handle, cublasFillMode_t uplo, int n, T* a[],
                               int lda, int* info, int count) {
  if (handle == nullptr) return CUSOLVER_STATUS_NOT_INITIALIZED;
  if (n < 0 || lda < least_ld(n) || count < 1 || !emulated::known_fill(uplo))
    return CUSOLVER_STATUS_INVALID_VALUE;
  emulated::require_device(a, "cusolverDn<t>potrfBatched");
  emulated::require_status(info, "cusolverDn<t>potrfBatched");
  log_cholesky("cusolver potrf batched", 1, n, sizeof(T), count);
  const bool lower = uplo == CUBLAS_FILL_MODE_LOWER;
  emulated::submit(handle->stream, [=] {
    for (int i = 0; i < count; ++i) {
      const ColumnMajor<T> one{a[i], lda};
      for (std::int64_t r = 0; r < n; ++r) {
        for (std::int64_t c = 0; c < r; ++c)
          (lower ? one(c, r) : one(r, c)) = std::numeric_limits<T>::quiet_NaN();
      }
      info[i] = factor<T>(lower, n, one);
    }
  });
  return CUSOLVER_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

cusolverStatus_t cusolverDnXpotrf_bufferSize(cusolverDnHandle_t handle, cusolverDnParams_t params,
                                             cublasFillMode_t uplo, int64_t n,
                                             cudaDataType dataTypeA, const void*, int64_t lda,
                                             cudaDataType computeType, size_t* onDevice,
                                             size_t* onHost) {
  if (handle == nullptr) return CUSOLVER_STATUS_NOT_INITIALIZED;
  if (params == nullptr || n < 0 || lda < least_ld(n) || !emulated::known_fill(uplo) ||
      !emulated::real_type(dataTypeA) || computeType != dataTypeA)
    return CUSOLVER_STATUS_INVALID_VALUE;
  return emulated::workspace_sizes(n, onDevice, onHost);
}

cusolverStatus_t cusolverDnXpotrf(cusolverDnHandle_t handle, cusolverDnParams_t params,
                                  cublasFillMode_t uplo, int64_t n, cudaDataType dataTypeA, void* A,
                                  int64_t lda, cudaDataType computeType, void* bufferOnDevice,
                                  size_t onDevice, void* bufferOnHost, size_t onHost, int* info) {
  if (handle == nullptr) return CUSOLVER_STATUS_NOT_INITIALIZED;
  if (params == nullptr || n < 0 || lda < least_ld(n) || !emulated::known_fill(uplo) ||
      !emulated::real_type(dataTypeA) || computeType != dataTypeA)
    return CUSOLVER_STATUS_INVALID_VALUE;
  if (!emulated::enough_workspace(n, bufferOnDevice, onDevice, bufferOnHost, onHost, "Xpotrf"))
    return CUSOLVER_STATUS_INVALID_VALUE;
  if (n > 0) emulated::require_device(A, "cusolverDnXpotrf");
  emulated::require_status(info, "cusolverDnXpotrf");
  log_cholesky("cusolver potrf", 1, n, dataTypeA == CUDA_R_64F ? 8 : 4, 1);
  const bool lower = uplo == CUBLAS_FILL_MODE_LOWER;
  emulated::submit(handle->stream, [=] {
    std::memset(bufferOnDevice, 0xff, emulated::device_workspace(n));
    *info = dataTypeA == CUDA_R_64F ? factor<double>(lower, n, {static_cast<double*>(A), lda})
                                    : factor<float>(lower, n, {static_cast<float*>(A), lda});
  });
  return CUSOLVER_STATUS_SUCCESS;
}

cusolverStatus_t cusolverDnSpotri_bufferSize(cusolverDnHandle_t handle, cublasFillMode_t uplo,
                                             int n, float*, int lda, int* lwork) {
  return potri_size<float>(handle, uplo, n, lda, lwork);
}
cusolverStatus_t cusolverDnDpotri_bufferSize(cusolverDnHandle_t handle, cublasFillMode_t uplo,
                                             int n, double*, int lda, int* lwork) {
  return potri_size<double>(handle, uplo, n, lda, lwork);
}
cusolverStatus_t cusolverDnSpotri(cusolverDnHandle_t handle, cublasFillMode_t uplo, int n, float* A,
                                  int lda, float* work, int lwork, int* devInfo) {
  return potri(handle, uplo, n, A, lda, work, lwork, devInfo);
}
cusolverStatus_t cusolverDnDpotri(cusolverDnHandle_t handle, cublasFillMode_t uplo, int n,
                                  double* A, int lda, double* work, int lwork, int* devInfo) {
  return potri(handle, uplo, n, A, lda, work, lwork, devInfo);
}

cusolverStatus_t cusolverDnSpotrfBatched(cusolverDnHandle_t handle, cublasFillMode_t uplo, int n,
                                         float* Aarray[], int lda, int* infoArray, int batchSize) {
  return potrf_batched(handle, uplo, n, Aarray, lda, infoArray, batchSize);
}
cusolverStatus_t cusolverDnDpotrfBatched(cusolverDnHandle_t handle, cublasFillMode_t uplo, int n,
                                         double* Aarray[], int lda, int* infoArray, int batchSize) {
  return potrf_batched(handle, uplo, n, Aarray, lda, infoArray, batchSize);
}

}  // extern "C"
