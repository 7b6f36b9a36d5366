#include "core/shared/host.h"
#include "kfac/inverse/backend_inverse.h"
#include "kfac/inverse/cuda/precondition_functors.h"

namespace dkfac::kfac::cpu {
namespace {

/// x[r,c] /= rows[r] * columns[c] + lambda, in one pass (next to four matrix products).
template <class T>
void divide_elements_by_products(TensorView x, ConstTensorView rows, ConstTensorView columns,
                                 const AppliedDamping& damping) {
  const std::int64_t n = x.dim(0), width = x.dim(1);
  const T* w_r = rows.data<T>();
  const T* w_c = columns.data<T>();
  T* data = x.data<T>();
  const T shift = static_cast<T>(damping.lambda());
  for (std::int64_t r = 0; r < n; ++r) {
    T* row = data + r * x.stride(0);
    const T scale = w_r[r];
#pragma GCC ivdep
    for (std::int64_t c = 0; c < width; ++c) row[c] /= scale * w_c[c] + shift;
  }
}

/// x /= scales + lambda.
template <class T>
void divide_elements_by_scales(TensorView x, ConstTensorView scales,
                               const AppliedDamping& damping) {
  const std::int64_t n = x.dim(0), width = x.dim(1);
  const T shift = static_cast<T>(damping.lambda());
  for (std::int64_t r = 0; r < n; ++r) {
    T* row = x.data<T>() + r * x.stride(0);
    const T* s = scales.data<T>() + r * width;
#pragma GCC ivdep
    for (std::int64_t c = 0; c < width; ++c) row[c] /= s[c] + shift;
  }
}

}  // namespace

void divide_by_products(Context&, TensorView x, ConstTensorView rows, ConstTensorView columns,
                        const AppliedDamping& damping) {
  with_real("precondition eigen", x.dtype(), [&](auto zero) {
    divide_elements_by_products<decltype(zero)>(x, rows, columns, damping);
  });
}

void divide_by_scales(Context&, TensorView x, ConstTensorView scales,
                      const AppliedDamping& damping) {
  with_real("precondition eigen", x.dtype(),
            [&](auto zero) { divide_elements_by_scales<decltype(zero)>(x, scales, damping); });
}

void solve_norms(Context&, NormFisher mode, std::span<const NormGradient> norms) {
  for (const NormGradient& norm : norms)
    with_real("precondition batch norm", norm.fisher.dtype(), [&](auto zero) {
      const auto solve = cuda::solve_norm<decltype(zero)>(mode, norm);
      for (std::int64_t c = 0; c < norm.beta.numel(); ++c) solve(c);
    });
}

}  // namespace dkfac::kfac::cpu
