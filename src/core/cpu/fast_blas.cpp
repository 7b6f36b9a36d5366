#include "core/backend_linalg.h"
#include "core/cpu/blas_symbols.h"
#include "core/cpu/free_threads.h"
#include "core/cpu/library_info.h"
#include "core/cpu/matrix.h"
#include "core/cpu/row_major.h"

/// Products by BLAS, which is column-major: it sees a row-major matrix as its transpose, so
/// operands are swapped and the lower triangle is the upper one.
namespace dkfac {

cpu::BlasInfo cpu::blas_info() {
  // OpenBLAS writes the text into one buffer at every call, and ranks of one process may call it
  // concurrently.
  static const BlasInfo info{true, openblas_get_config(), openblas_get_corename()};
  return info;
}

namespace fast {

void follow_openmp() {
  constexpr int kOwnThreads = 1;  // Of OpenBLAS; 0: none, 2: OpenMP's.
  if (openblas_get_parallel() == kOwnThreads) openblas_set_num_threads(cpu::free_threads());
}

namespace {

template <class T>
void multiply(Context& ctx, const Product<T>& p) {
  if (try_onednn(ctx, p)) return;
  const int m = blas_int("gemm", p.m), n = blas_int("gemm", p.n), k = blas_int("gemm", p.k);
  const int lda = blas_int("gemm", p.lda), ldb = blas_int("gemm", p.ldb);
  const int ldc = blas_int("gemm", p.ldc);
  follow_openmp();
  Blas<T>::gemm(p.trans_b ? "T" : "N", p.trans_a ? "T" : "N", &n, &m, &k, &p.alpha, p.b, &ldb, p.a,
                &lda, &p.beta, p.c, &ldc, 1, 1);
}

/// Width up to which SYRK is a full product into a tile whose lower triangle is then added: faster
/// than SYRK where the matrix is so narrow that half the work saves nothing.
constexpr std::int64_t kNarrow = 64;

template <class T>
void syrk_narrow(Context& ctx, T alpha, ConstTensorView x, TensorView c) {
  const std::int64_t d = x.dim(1);
  Scratch scratch(ctx);
  const auto tile = cpu::matrix_of<T>(scratch.take({d, d}, c.dtype()));
  const T* data = x.data<T>();
  const std::int64_t ldx = cpu::row_stride(x);
  multiply(ctx, Product<T>{true, false, d, d, x.dim(0), alpha, data, ldx, data, ldx, T{0},
                           tile.data, tile.row});
  const auto sum = cpu::matrix_of<T>(c);
  for (std::int64_t i = 0; i < d; ++i) {
    for (std::int64_t j = 0; j <= i; ++j) sum(i, j) += tile(i, j);
  }
}

template <class T>
void syrk_wide(T alpha, ConstTensorView x, TensorView c) {
  const int d = blas_int("syrk", x.dim(1)), k = blas_int("syrk", x.dim(0));
  const int ldx = blas_int("syrk", cpu::row_stride(x));
  const int ldc = blas_int("syrk", cpu::row_stride(c));
  const T one{1};
  follow_openmp();
  Blas<T>::syrk("U", "N", &d, &k, &alpha, x.data<T>(), &ldx, &one, c.data<T>(), &ldc, 1, 1);
}

}  // namespace

void gemm(Context& ctx, ops::Trans trans_a, ops::Trans trans_b, double alpha, ConstTensorView a,
          ConstTensorView b, double beta, TensorView c) {
  element::visit_computing(c.dtype(), [&]<class T>(element::Type<T>) {
    multiply(ctx, product_of<T>(trans_a, trans_b, alpha, a, b, beta, c));
  });
}

void syrk(Context& ctx, double alpha, ConstTensorView x, double beta, TensorView c) {
  // Not left to BLAS, whose versions differ on whether 0 times NaN is 0.
  cpu::scale_lower(ctx, beta, c);
  element::visit_computing(c.dtype(), [&]<class T>(element::Type<T>) {
    if (c.dim(0) <= kNarrow) {
      syrk_narrow(ctx, static_cast<T>(alpha), x, c);
    } else {
      syrk_wide(static_cast<T>(alpha), x, c);
    }
  });
}

}  // namespace fast
}  // namespace dkfac
