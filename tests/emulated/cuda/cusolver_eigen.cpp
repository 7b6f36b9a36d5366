#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "arithmetic.h"
#include "cusolver_calls.h"

// The symmetric eigensolver of cuSOLVER, by Jacobi rotations in f64.
namespace {

using emulated::ColumnMajor;
using emulated::least_ld;

/// Column-major matrices of order n.
struct Work {
  std::int64_t n;
  std::vector<double> a, v;
  double& at(std::vector<double>& x, std::int64_t i, std::int64_t j) const {
    return x[static_cast<std::size_t>(i + j * n)];
  }
};

template <class T>
int decompose(bool vectors, bool lower, std::int64_t n, ColumnMajor<T> a, T* values) {
  Work w{n, std::vector<double>(static_cast<std::size_t>(n * n)), {}};
  w.v.assign(w.a.size(), 0.0);
  for (std::int64_t j = 0; j < n; ++j) {
    for (std::int64_t i = 0; i < n; ++i) {
      const bool stored = lower ? i >= j : i <= j;
      const double x = stored ? a(i, j) : a(j, i);
      if (!std::isfinite(x)) throw std::runtime_error("emulated device: Xsyevd of a NaN");
      w.at(w.a, i, j) = x;
    }
    w.at(w.v, j, j) = 1;
  }
  if (const int left = emulated::arithmetic::diagonalise(n, w.a.data(), w.v.data()); left != 0)
    return left;
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](auto l, auto r) { return w.at(w.a, l, l) < w.at(w.a, r, r); });
  for (std::int64_t j = 0; j < n; ++j) {
    const std::int64_t from = order[static_cast<std::size_t>(j)];
    values[j] = static_cast<T>(w.at(w.a, from, from));
    for (std::int64_t i = 0; i < n; ++i)
      a(i, j) = vectors ? static_cast<T>(w.at(w.v, i, from)) : std::numeric_limits<T>::quiet_NaN();
  }
  return 0;
}

cusolverStatus_t check(cusolverDnHandle_t handle, cusolverDnParams_t params, cusolverEigMode_t jobz,
                       cublasFillMode_t uplo, std::int64_t n, cudaDataType type, std::int64_t lda,
                       cudaDataType type_w, cudaDataType compute) {
  if (handle == nullptr) return CUSOLVER_STATUS_NOT_INITIALIZED;
  const bool good = params != nullptr && n >= 0 && lda >= least_ld(n) &&
                    emulated::known_fill(uplo) &&
                    (jobz == CUSOLVER_EIG_MODE_VECTOR || jobz == CUSOLVER_EIG_MODE_NOVECTOR) &&
                    emulated::real_type(type) && type_w == type && compute == type;
  return good ? CUSOLVER_STATUS_SUCCESS : CUSOLVER_STATUS_INVALID_VALUE;
}

}  // namespace

extern "C" {

cusolverStatus_t cusolverDnXsyevd_bufferSize(cusolverDnHandle_t handle, cusolverDnParams_t params,
                                             cusolverEigMode_t jobz, cublasFillMode_t uplo,
                                             int64_t n, cudaDataType dataTypeA, const void*,
                                             int64_t lda, cudaDataType dataTypeW, const void*,
                                             cudaDataType computeType, size_t* onDevice,
                                             size_t* onHost) {
  const cusolverStatus_t status =
      check(handle, params, jobz, uplo, n, dataTypeA, lda, dataTypeW, computeType);
  if (status != CUSOLVER_STATUS_SUCCESS) return status;
  return emulated::workspace_sizes(n, onDevice, onHost);
}

cusolverStatus_t cusolverDnXsyevd(cusolverDnHandle_t handle, cusolverDnParams_t params,
                                  cusolverEigMode_t jobz, cublasFillMode_t uplo, int64_t n,
                                  cudaDataType dataTypeA, void* A, int64_t lda,
                                  cudaDataType dataTypeW, void* W, cudaDataType computeType,
                                  void* bufferOnDevice, size_t onDevice, void* bufferOnHost,
                                  size_t onHost, int* info) {
  const cusolverStatus_t status =
      check(handle, params, jobz, uplo, n, dataTypeA, lda, dataTypeW, computeType);
  if (status != CUSOLVER_STATUS_SUCCESS) return status;
  if (!emulated::enough_workspace(n, bufferOnDevice, onDevice, bufferOnHost, onHost, "Xsyevd"))
    return CUSOLVER_STATUS_INVALID_VALUE;
  if (n > 0) emulated::require_device(A, "cusolverDnXsyevd");
  if (n > 0) emulated::require_device(W, "cusolverDnXsyevd");
  emulated::require_status(info, "cusolverDnXsyevd");
  const bool lower = uplo == CUBLAS_FILL_MODE_LOWER, vectors = jobz == CUSOLVER_EIG_MODE_VECTOR;
  emulated::submit(handle->stream, [=] {
    std::memset(bufferOnDevice, 0xff, emulated::device_workspace(n));
    *info = dataTypeA == CUDA_R_64F
                ? decompose<double>(vectors, lower, n, {static_cast<double*>(A), lda},
                                    static_cast<double*>(W))
                : decompose<float>(vectors, lower, n, {static_cast<float*>(A), lda},
                                   static_cast<float*>(W));
  });
  return CUSOLVER_STATUS_SUCCESS;
}

}  // extern "C"
