#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include <cublas_v2.h>

#include "arithmetic.h"
#include "column_major.h"
#include "emulated/work_log.h"
#include "handles.h"

// General and symmetric products of cuBLAS. Sums are f64; operands of the TF32 mode lose their last
// 13 bits first.
namespace {

namespace arithmetic = emulated::arithmetic;
using emulated::ColumnMajor;
using emulated::least_ld;

bool known(cublasOperation_t op) {
  return op == CUBLAS_OP_N || op == CUBLAS_OP_T || op == CUBLAS_OP_C;
}

bool is_f64(cublasComputeType_t type) {
  return type == CUBLAS_COMPUTE_64F || type == CUBLAS_COMPUTE_64F_PEDANTIC;
}

/// Whether the combination is in the table of cublasGemmEx, with an f32 or f64 result.
bool supported(cudaDataType a, cudaDataType b, cudaDataType c, cublasComputeType_t compute) {
  if (a != b) return false;
  if (is_f64(compute)) return a == CUDA_R_64F && c == CUDA_R_64F;
  const bool f32 = a == CUDA_R_32F && c == CUDA_R_32F;
  if (compute == CUBLAS_COMPUTE_32F_FAST_TF32) return f32;
  if (compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_32F_PEDANTIC) return false;
  return f32 || ((a == CUDA_R_16F || a == CUDA_R_16BF) && c == CUDA_R_32F);
}

std::int64_t size_of(cudaDataType type) {
  return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2;
}

template <class T>
T bits_at(const void* data, std::int64_t i) {
  T out;
  std::memcpy(&out, static_cast<const char*>(data) + i * static_cast<std::int64_t>(sizeof(T)),
              sizeof(T));
  return out;
}

arithmetic::Number number(cudaDataType type) {
  if (type == CUDA_R_64F) return arithmetic::Number::f64;
  if (type == CUDA_R_32F) return arithmetic::Number::f32;
  return type == CUDA_R_16F ? arithmetic::Number::f16 : arithmetic::Number::bf16;
}

/// Address of matrix `index` of a batch: data + index * stride elements of `type`, or data[index]
/// where the batch is an array of addresses.
template <class Data>
Data* matrix_of(Data* data, bool listed, cudaDataType type, std::int64_t index,
                std::int64_t stride) {
  using Byte = std::conditional_t<std::is_const_v<Data>, const char, char>;
  if (!listed) return static_cast<Byte*>(data) + index * stride * size_of(type);
  auto* const found = static_cast<Data* const*>(static_cast<const void*>(data))[index];
  if (reinterpret_cast<std::uintptr_t>(found) % 16 != 0)
    throw std::runtime_error(
        "emulated device: cublasGemmBatchedEx got an address that is not a "
        "multiple of 16 bytes");
  return found;
}

struct Operand {
  const void* data;
  cudaDataType type;
  std::int64_t ld, stride;
  bool transposed;
  bool listed = false;

  /// Reads op(A)[rows, cols], column after column, for the batch of this index.
  [[nodiscard]] std::vector<double> read(std::int64_t index, std::int64_t rows, std::int64_t cols,
                                         bool tf32) const {
    std::vector<double> out(static_cast<std::size_t>(rows * cols));
    if (out.empty()) return out;
    const std::int64_t lines = transposed ? rows : cols, length = transposed ? cols : rows;
    std::vector<double> line(static_cast<std::size_t>(length));  // Of any type.
    const auto* const matrix =
        static_cast<const char*>(matrix_of(data, listed, type, index, stride));
    for (std::int64_t i = 0; i < lines; ++i) {
      std::memcpy(line.data(), matrix + i * ld * size_of(type),
                  static_cast<std::size_t>(length * size_of(type)));
      double* const to = out.data() + (transposed ? i : i * rows);
      arithmetic::widen(number(type), tf32, length, line.data(), to, transposed ? rows : 1);
    }
    return out;
  }
};

/// alpha * sum + beta * old, where 0 times an old NaN is 0.
template <class T>
T combined(double alpha, double sum, double beta, T old) {
  return static_cast<T>(alpha * sum + (beta == 0 ? 0 : beta * static_cast<double>(old)));
}

struct Product {
  std::int64_t m, n, k;
  Operand a, b;
  void* c;
  cudaDataType c_type;
  std::int64_t ldc, stride_c;
  std::int64_t count;
  bool tf32;

  [[nodiscard]] double flop() const {
    return 2.0 * static_cast<double>(m * n) * static_cast<double>(k * count);
  }
  [[nodiscard]] double bytes() const {
    return static_cast<double>(count) *
           static_cast<double>(m * k * size_of(a.type) + k * n * size_of(b.type) +
                               m * n * size_of(c_type));
  }

  /// Whether all columns, which are rows for the caller, begin at multiples of 16 bytes; true for a
  /// vector. Listed addresses are checked where they are read.
  [[nodiscard]] bool aligned() const {
    const auto is_aligned = [&](const void* data, cudaDataType type, std::int64_t ld) {
      return ld * size_of(type) % 16 == 0 &&
             (a.listed || reinterpret_cast<std::uintptr_t>(data) % 16 == 0);
    };
    return m == 1 || n == 1 || k == 1 ||
           (is_aligned(a.data, a.type, a.ld) && is_aligned(b.data, b.type, b.ld) &&
            is_aligned(c, c_type, ldc));
  }

  template <class T>
  void run(double alpha, double beta) const {
    for (std::int64_t index = 0; index < count; ++index) {
      const auto left = a.read(index, m, k, tf32), right = b.read(index, k, n, tf32);
      void* const result = matrix_of(c, a.listed, c_type, index, stride_c);
      const ColumnMajor<T> out{static_cast<T*>(result), ldc};
      std::vector<double> sums(static_cast<std::size_t>(m * n));
      arithmetic::multiply(m, n, k, left.data(), right.data(), sums.data());
      const double* sum = sums.data();
      for (std::int64_t j = 0; j < n; ++j)
        for (std::int64_t i = 0; i < m; ++i, ++sum)
          out(i, j) = combined(alpha, *sum, beta, out(i, j));
    }
  }
};

/// Calls body(alpha, beta) on the stream; in host mode with the scalars at the time of the call.
template <class T, class Body>
void submit(cublasHandle_t handle, const void* alpha, const void* beta, Body body) {
  if (handle->device_scalars) {
    emulated::submit(handle->stream, [=] { body(bits_at<T>(alpha, 0), bits_at<T>(beta, 0)); });
  } else {
    const T a = bits_at<T>(alpha, 0), b = bits_at<T>(beta, 0);
    emulated::submit(handle->stream, [=] { body(a, b); });
  }
}

cublasStatus_t multiply(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b,
                        const Product& p, const void* alpha, const void* beta,
                        cublasComputeType_t compute) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (p.m < 0 || p.n < 0 || p.k < 0 || p.count < 0 || !known(op_a) || !known(op_b))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (p.a.ld < least_ld(p.a.transposed ? p.k : p.m) ||
      p.b.ld < least_ld(p.b.transposed ? p.n : p.k) || p.ldc < least_ld(p.m))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (alpha == nullptr || beta == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if (!supported(p.a.type, p.b.type, p.c_type, compute)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (p.m == 0 || p.n == 0 || p.count == 0) return CUBLAS_STATUS_SUCCESS;
  if (emulated::product_fails(p.aligned())) return CUBLAS_STATUS_EXECUTION_FAILED;
  for (const void* data : {p.a.data, p.b.data, static_cast<const void*>(p.c)})
    emulated::require_device(data, "cublasGemmEx");
  emulated::log_work({"cublas", p.flop(), p.bytes()});
  if (is_f64(compute)) {
    submit<double>(handle, alpha, beta, [p](double a, double b) { p.run<double>(a, b); });
  } else {
    submit<float>(handle, alpha, beta, [p](double a, double b) { p.run<float>(a, b); });
  }
  return CUBLAS_STATUS_SUCCESS;
}

template <class T>
cublasStatus_t syrk(cublasHandle_t handle, cublasFillMode_t uplo, cublasOperation_t op,
                    std::int64_t n, std::int64_t k, const T* alpha, const T* a, std::int64_t lda,
                    const T* beta, T* c, std::int64_t ldc) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (n < 0 || k < 0 || !known(op) ||
      (uplo != CUBLAS_FILL_MODE_LOWER && uplo != CUBLAS_FILL_MODE_UPPER))
    return CUBLAS_STATUS_INVALID_VALUE;
  const bool transposed = op != CUBLAS_OP_N;
  if (lda < least_ld(transposed ? k : n) || ldc < least_ld(n)) return CUBLAS_STATUS_INVALID_VALUE;
  if (alpha == nullptr || beta == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if (n == 0) return CUBLAS_STATUS_SUCCESS;
  emulated::require_device(a, "cublas<t>syrk");
  emulated::require_device(c, "cublas<t>syrk");
  const cudaDataType type = sizeof(T) == sizeof(double) ? CUDA_R_64F : CUDA_R_32F;
  const ColumnMajor<T> out{c, ldc};
  const auto width = static_cast<double>(n), depth = static_cast<double>(k);
  emulated::log_work({"cublas syrk", width * (width + 1) * depth,
                      (width * depth + width * width) * static_cast<double>(sizeof(T))});
  submit<T>(handle, alpha, beta, [=](double scale, double keep) {
    const auto left = Operand{a, type, lda, 0, transposed}.read(0, n, k, false),
               right = Operand{a, type, lda, 0, !transposed}.read(0, k, n, false);
    std::vector<double> sums(static_cast<std::size_t>(n * n));
    arithmetic::multiply(n, n, k, left.data(), right.data(), sums.data());
    for (std::int64_t j = 0; j < n; ++j) {
      const std::int64_t first = uplo == CUBLAS_FILL_MODE_LOWER ? j : 0;
      const std::int64_t end = uplo == CUBLAS_FILL_MODE_LOWER ? n : j + 1;
      for (std::int64_t i = first; i < end; ++i)
        out(i, j) = combined(scale, sums[static_cast<std::size_t>(i + j * n)], keep, out(i, j));
    }
  });
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

cublasStatus_t cublasGemmStridedBatchedEx_64(
    cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int64_t m, int64_t n,
    int64_t k, const void* alpha, const void* A, cudaDataType Atype, int64_t lda,
    long long int strideA, const void* B, cudaDataType Btype, int64_t ldb, long long int strideB,
    const void* beta, void* C, cudaDataType Ctype, int64_t ldc, long long int strideC,
    int64_t batchCount, cublasComputeType_t computeType, cublasGemmAlgo_t) {
  const Product product{m,
                        n,
                        k,
                        {A, Atype, lda, strideA, transa != CUBLAS_OP_N},
                        {B, Btype, ldb, strideB, transb != CUBLAS_OP_N},
                        C,
                        Ctype,
                        ldc,
                        strideC,
                        batchCount,
                        computeType == CUBLAS_COMPUTE_32F_FAST_TF32};
  return multiply(handle, transa, transb, product, alpha, beta, computeType);
}

cublasStatus_t cublasGemmBatchedEx_64(cublasHandle_t handle, cublasOperation_t transa,
                                      cublasOperation_t transb, int64_t m, int64_t n, int64_t k,
                                      const void* alpha, const void* const Aarray[],
                                      cudaDataType Atype, int64_t lda, const void* const Barray[],
                                      cudaDataType Btype, int64_t ldb, const void* beta,
                                      void* const Carray[], cudaDataType Ctype, int64_t ldc,
                                      int64_t batchCount, cublasComputeType_t computeType,
                                      cublasGemmAlgo_t) {
  const Product product{m,
                        n,
                        k,
                        {Aarray, Atype, lda, 0, transa != CUBLAS_OP_N, true},
                        {Barray, Btype, ldb, 0, transb != CUBLAS_OP_N, true},
                        const_cast<void**>(Carray),
                        Ctype,
                        ldc,
                        0,
                        batchCount,
                        computeType == CUBLAS_COMPUTE_32F_FAST_TF32};
  return multiply(handle, transa, transb, product, alpha, beta, computeType);
}

cublasStatus_t cublasGemmEx_64(cublasHandle_t handle, cublasOperation_t transa,
                               cublasOperation_t transb, int64_t m, int64_t n, int64_t k,
                               const void* alpha, const void* A, cudaDataType Atype, int64_t lda,
                               const void* B, cudaDataType Btype, int64_t ldb, const void* beta,
                               void* C, cudaDataType Ctype, int64_t ldc,
                               cublasComputeType_t computeType, cublasGemmAlgo_t algo) {
  return cublasGemmStridedBatchedEx_64(handle, transa, transb, m, n, k, alpha, A, Atype, lda, 0, B,
                                       Btype, ldb, 0, beta, C, Ctype, ldc, 0, 1, computeType, algo);
}

cublasStatus_t cublasSsyrk_v2_64(cublasHandle_t handle, cublasFillMode_t uplo,
                                 cublasOperation_t trans, int64_t n, int64_t k, const float* alpha,
                                 const float* A, int64_t lda, const float* beta, float* C,
                                 int64_t ldc) {
  return syrk(handle, uplo, trans, n, k, alpha, A, lda, beta, C, ldc);
}
cublasStatus_t cublasDsyrk_v2_64(cublasHandle_t handle, cublasFillMode_t uplo,
                                 cublasOperation_t trans, int64_t n, int64_t k, const double* alpha,
                                 const double* A, int64_t lda, const double* beta, double* C,
                                 int64_t ldc) {
  return syrk(handle, uplo, trans, n, k, alpha, A, lda, beta, C, ldc);
}

}  // extern "C"
