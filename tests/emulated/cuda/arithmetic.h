#pragma once

#include <cstddef>
#include <cstdint>

/// Arithmetic of the emulated libraries on their own copies of operands. It is optimised, and no
/// sanitizer watches it: the memory of the device is read and written by its callers alone, but for
/// the patterns of new and of free memory.
/// Matrices without a leading dimension are dense.
namespace emulated::arithmetic {

enum class Number { f64, f32, f16, bf16 };

/// Writes `value` over n bytes of memory without a user; `to` is aligned as a std::uint64_t.
void fill(std::byte* to, std::uint8_t value, std::size_t n);

/// to[i * stride] = from[i]; with `tf32`, an f32 without its last 13 bits, rounded.
void widen(Number type, bool tf32, std::int64_t count, const void* from, double* to,
           std::int64_t stride);

/// product[m,n] = left[m,k] right[k,n], column after column.
void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const double* left,
              const double* right, double* product);

/// Replaces x by y of A y = alpha x. A[order,order] is triangular, row after row; `forward`: its
/// lower triangle. `unit`: a diagonal of ones, which is not read.
void solve(bool forward, bool unit, std::int64_t order, double alpha, const double* a, float* x);
void solve(bool forward, bool unit, std::int64_t order, double alpha, const double* a, double* x);

/// Writes L of A = L L' over the lower triangle of A, row after row. Returns 0, or the order of the
/// first minor that is not positive definite. A NaN is a positive pivot.
[[nodiscard]] int cholesky(std::int64_t n, float* l);
[[nodiscard]] int cholesky(std::int64_t n, double* l);

/// Writes the lower triangle of the inverse of L L' over L, row after row. `work`: n * n numbers.
void invert(std::int64_t n, float* l, double* work);
void invert(std::int64_t n, double* l, double* work);

/// Cyclic Jacobi rotations (Golub and Van Loan, Matrix Computations, 8.5) of a symmetric A[n,n], of
/// which the diagonal remains; V, the identity before, receives the eigenvectors as columns.
/// Returns 0, or 1 when an off-diagonal element remains.
[[nodiscard]] int diagonalise(std::int64_t n, double* a, double* v);

/// Channels-last tensors x, w, y with dimensions as N, C, H, W, where w is K, C of a group, R, S.
struct Convolution {
  std::int64_t x[4], w[4], y[4];
  std::int64_t before[2], stride[2], dilation[2];
};
/// Results are added to.
void convolve(const Convolution& shape, const float* x, const float* w, double* y);
void gradient_of_x(const Convolution& shape, const float* dy, const float* w, double* dx);
void gradient_of_w(const Convolution& shape, const float* dy, const float* x, double* dw);

}  // namespace emulated::arithmetic
