#include <cmath>

#include "core/backend_linalg.h"
#include "core/cpu/blas_symbols.h"
#include "core/cpu/symmetric.h"

/// Factorizations by LAPACK, which is column-major: it sees the lower triangle of a row-major
/// matrix as the upper one.
namespace dkfac::fast {
namespace {

void check_arguments(std::string_view op, int info) {
  if (info < 0) {
    throw Error(detail::concat("[", op, "] LAPACK refused argument ", -info,
                               "; this is an error of the library"));
  }
}

/// Returns the position (from 1) of the first of `count` pivots that is not positive and finite; 0
/// for none. OpenBLAS does not report a NaN, which reaches the pivot of its row.
template <class T>
int first_bad_pivot(cpu::Matrix<const T> l, int count) {
  for (int i = 0; i < count; ++i) {
    if (!(l(i, i) > T{0}) || !std::isfinite(l(i, i))) return i + 1;
  }
  return 0;
}

/// Workspace sizes of SYEVD with vectors, from its documentation: the query returns them as T, and
/// float cannot represent them from an order of about 2900 on.
std::int64_t syevd_work(std::int64_t n) { return n <= 1 ? 1 : 1 + 6 * n + 2 * n * n; }
std::int64_t syevd_integer_work(std::int64_t n) { return n <= 1 ? 1 : 3 + 5 * n; }

template <class T>
int decompose(Context& ctx, TensorView a, TensorView w) {
  const int d = blas_int("eigh", a.dim(0));
  const auto m = cpu::matrix_of<T>(a);
  if (!cpu::lower_is_finite<T>(m, d)) return d + 1;
  const int lda = blas_int("eigh", m.row);
  const int lwork = blas_int("eigh", syevd_work(d));
  const int liwork = blas_int("eigh", syevd_integer_work(d));
  Scratch scratch(ctx);
  T* work = scratch.take({lwork}, a.dtype()).data<T>();
  auto* integer_work = scratch.take({liwork}, DType::i32).data<std::int32_t>();
  int info = 0;
  follow_openmp();
  Blas<T>::syevd("V", "U", &d, m.data, &lda, w.data<T>(), work, &lwork, integer_work, &liwork,
                 &info, 1, 1);
  check_arguments("eigh", info);
  // LAPACK returns eigenvectors in its columns, which are rows here.
  cpu::transpose_square(m, d);
  return info;
}

}  // namespace

void potrf(Context&, TensorView a, TensorView info) {
  element::visit_computing(a.dtype(), [&]<class T>(element::Type<T>) {
    const int d = blas_int("potrf", a.dim(0));
    const auto m = cpu::matrix_of<T>(a);
    const int lda = blas_int("potrf", m.row);
    int bad = 0;
    follow_openmp();
    Blas<T>::potrf("U", &d, m.data, &lda, &bad, 1);
    check_arguments("potrf", bad);
    const int earlier = first_bad_pivot<T>(m, bad > 0 ? bad - 1 : d);
    *info.data<std::int32_t>() = earlier > 0 ? earlier : bad;
  });
}

void potri(Context&, TensorView a, TensorView info) {
  element::visit_computing(a.dtype(), [&]<class T>(element::Type<T>) {
    const int d = blas_int("potri", a.dim(0));
    const auto m = cpu::matrix_of<T>(a);
    const int lda = blas_int("potri", m.row);
    int bad = 0;
    follow_openmp();
    Blas<T>::potri("U", &d, m.data, &lda, &bad, 1);
    check_arguments("potri", bad);
    *info.data<std::int32_t>() = bad;
  });
}

void eigh(Context& ctx, TensorView a, TensorView w, TensorView info) {
  element::visit_computing(a.dtype(), [&]<class T>(element::Type<T>) {
    *info.data<std::int32_t>() = decompose<T>(ctx, a, w);
  });
}

}  // namespace dkfac::fast
