#pragma once

#include <cstdint>

#include "dkfac/core/ops.h"
#include "dkfac/core/tensor_view.h"

#include "core/cpu/matrix.h"

/// Raw row-major products below the level of views, the common interface of the libraries.
namespace dkfac::fast {

/// c[m,n] = alpha*op(a)*op(b) + beta*c with row strides lda, ldb, ldc; beta = 0 does not read c.
template <class T>
struct Product {
  bool trans_a, trans_b;
  std::int64_t m, n, k;
  T alpha;
  const T* a;
  std::int64_t lda;
  const T* b;
  std::int64_t ldb;
  T beta;
  T* c;
  std::int64_t ldc;
};

/// Returns the product of checked views.
template <class T>
[[nodiscard]] Product<T> product_of(ops::Trans trans_a, ops::Trans trans_b, double alpha,
                                    ConstTensorView a, ConstTensorView b, double beta,
                                    TensorView c) {
  const bool ta = trans_a == ops::Trans::yes, tb = trans_b == ops::Trans::yes;
  return {ta,
          tb,
          c.dim(0),
          c.dim(1),
          a.dim(ta ? 0 : 1),
          static_cast<T>(alpha),
          a.data<T>(),
          cpu::row_stride(a),
          b.data<T>(),
          cpu::row_stride(b),
          static_cast<T>(beta),
          c.data<T>(),
          cpu::row_stride(c)};
}

/// Computes a product by oneDNN; returns false and does nothing in a build without it.
[[nodiscard]] bool try_onednn(Context& ctx, const Product<float>& product);
/// oneDNN has no product in double precision.
[[nodiscard]] inline bool try_onednn(Context&, const Product<double>&) { return false; }

}  // namespace dkfac::fast
