#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "cusolver_calls.h"

// The symmetric eigensolver of cuSOLVER, by cyclic Jacobi rotations in f64 (Golub and Van Loan,
// Matrix Computations, 8.5).
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

/// Multiplies columns p and q of x by the rotation [c s; -s c].
void rotate_columns(Work& w, std::vector<double>& x, std::int64_t p, std::int64_t q, double c,
                    double s) {
  for (std::int64_t i = 0; i < w.n; ++i) {
    const double left = w.at(x, i, p), right = w.at(x, i, q);
    w.at(x, i, p) = c * left - s * right;
    w.at(x, i, q) = s * left + c * right;
  }
}

void rotate(Work& w, std::int64_t p, std::int64_t q) {
  const double off = w.at(w.a, p, q);
  const double tau = (w.at(w.a, q, q) - w.at(w.a, p, p)) / (2 * off);
  const double t = std::copysign(1.0, tau) / (std::abs(tau) + std::hypot(1.0, tau));
  const double c = 1 / std::hypot(1.0, t), s = t * c;
  rotate_columns(w, w.a, p, q, c, s);
  for (std::int64_t i = 0; i < w.n; ++i) {
    const double upper = w.at(w.a, p, i), lower = w.at(w.a, q, i);
    w.at(w.a, p, i) = c * upper - s * lower;
    w.at(w.a, q, i) = s * upper + c * lower;
  }
  w.at(w.a, p, q) = w.at(w.a, q, p) = 0;  // Zero except for rounding.
  rotate_columns(w, w.v, p, q, c, s);
}

/// Returns 0, or 1 when an off-diagonal element remains.
int diagonalise(Work& w) {
  double largest = 0;
  for (const double x : w.a) largest = std::max(largest, std::abs(x));
  for (int sweep = 0; sweep < 60; ++sweep) {
    bool changed = false;
    for (std::int64_t q = 1; q < w.n; ++q) {
      for (std::int64_t p = 0; p < q; ++p) {
        if (std::abs(w.at(w.a, p, q)) <= 1e-17 * largest) continue;
        rotate(w, p, q);
        changed = true;
      }
    }
    if (!changed) return 0;
  }
  return 1;
}

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
  if (const int left = diagonalise(w); left != 0) return left;
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
