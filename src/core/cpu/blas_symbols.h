#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

#include "dkfac/core/error.h"

/// BLAS and LAPACK by their Fortran names, before which cmake/FindDkfacBLAS.cmake puts the prefix
/// that some builds of OpenBLAS have: a new name here is a new one there. Character arguments have
/// their lengths at the end, as Fortran compilers pass them.
extern "C" {
void sgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k,
            const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
            const float* beta, float* c, const int* ldc, std::size_t, std::size_t);
void dgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k,
            const double* alpha, const double* a, const int* lda, const double* b, const int* ldb,
            const double* beta, double* c, const int* ldc, std::size_t, std::size_t);
void ssyrk_(const char* uplo, const char* trans, const int* n, const int* k, const float* alpha,
            const float* a, const int* lda, const float* beta, float* c, const int* ldc,
            std::size_t, std::size_t);
void dsyrk_(const char* uplo, const char* trans, const int* n, const int* k, const double* alpha,
            const double* a, const int* lda, const double* beta, double* c, const int* ldc,
            std::size_t, std::size_t);
void spotrf_(const char* uplo, const int* n, float* a, const int* lda, int* info, std::size_t);
void dpotrf_(const char* uplo, const int* n, double* a, const int* lda, int* info, std::size_t);
void spotri_(const char* uplo, const int* n, float* a, const int* lda, int* info, std::size_t);
void dpotri_(const char* uplo, const int* n, double* a, const int* lda, int* info, std::size_t);
void ssyevd_(const char* jobz, const char* uplo, const int* n, float* a, const int* lda, float* w,
             float* work, const int* lwork, int* iwork, const int* liwork, int* info, std::size_t,
             std::size_t);
void dsyevd_(const char* jobz, const char* uplo, const int* n, double* a, const int* lda, double* w,
             double* work, const int* lwork, int* iwork, const int* liwork, int* info, std::size_t,
             std::size_t);
char* openblas_get_config(void);
char* openblas_get_corename(void);
int openblas_get_parallel(void);
void openblas_set_num_threads(int count);
}

namespace dkfac::fast {

/// BLAS and LAPACK routines of one element type.
template <class T>
struct Blas;
template <>
struct Blas<float> {
  static constexpr auto gemm = sgemm_;
  static constexpr auto syrk = ssyrk_;
  static constexpr auto potrf = spotrf_;
  static constexpr auto potri = spotri_;
  static constexpr auto syevd = ssyevd_;
};
template <>
struct Blas<double> {
  static constexpr auto gemm = dgemm_;
  static constexpr auto syrk = dsyrk_;
  static constexpr auto potrf = dpotrf_;
  static constexpr auto potri = dpotri_;
  static constexpr auto syevd = dsyevd_;
};

/// Before each call of BLAS: has it use as many threads as an OpenMP region that begins here would,
/// one inside of another. OpenBLAS does so by itself where its threads are OpenMP's; where they are
/// its own, it would use all cores from within each thread of a region.
void follow_openmp();

/// Converts a size to BLAS's int; throws if it does not fit.
inline int blas_int(std::string_view op, std::int64_t n) {
  DKFAC_CHECK(n <= std::numeric_limits<int>::max(), "[", op, "] a size or stride of ", n,
              " is more than this BLAS can index; split the operation");
  return static_cast<int>(n);
}

}  // namespace dkfac::fast
