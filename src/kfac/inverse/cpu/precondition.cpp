#include <algorithm>

#include "core/shared/host.h"
#include "kfac/inverse/backend_inverse.h"

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

template <class T>
void solve_norm(NormFisher mode, const NormGradient& norm) {
  const double shift = norm.damping.lambda();
  const std::int64_t channels = norm.beta.numel(), rows = norm.fisher.dim(0);
  const T* gg = norm.fisher.data<T>();
  const T* gb = gg + channels;
  const T* bb = gg + (rows - 1) * channels;
  T* beta = norm.beta.data<T>();
  if (norm.gamma.numel() == 0) {
    for (std::int64_t c = 0; c < channels; ++c) beta[c] /= bb[c] + static_cast<T>(shift);
    return;
  }
  T* gamma = norm.gamma.data<T>();
  // In f64, because the determinant cancels. The exact a d - b^2 is not negative
  // (Cauchy-Schwarz), but may be slightly negative for rounded statistics.
  for (std::int64_t c = 0; c < channels; ++c) {
    const double a = gg[c], d = bb[c];
    const double b = mode == NormFisher::diagonal ? 0.0 : static_cast<double>(gb[c]);
    const double x = gamma[c], y = beta[c];
    const double exact = std::max(a * d - b * b, 0.0);
    const double determinant = exact + shift * (a + d) + shift * shift;
    gamma[c] = static_cast<T>(((d + shift) * x - b * y) / determinant);
    beta[c] = static_cast<T>(((a + shift) * y - b * x) / determinant);
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
    with_real("precondition batch norm", norm.fisher.dtype(),
              [&](auto zero) { solve_norm<decltype(zero)>(mode, norm); });
}

}  // namespace dkfac::kfac::cpu
