#include <algorithm>
#include <cmath>

#include "dkfac/core/ops.h"
#include "dkfac/kfac/curvature.h"
#include "dkfac/kfac/inverse.h"

#include "kfac/apply_factor.h"
#include "kfac/host.h"

namespace dkfac::kfac {
namespace {

using ops::Trans;

/// The gradient [dW | db] as one or two column blocks of an [out, d] matrix.
struct GradientView {
  TensorView weight;  ///< [out, width]
  TensorView bias;    ///< [out, 1] or empty
  std::int64_t out, width, d;
};

GradientView view_gradient(std::string_view operation, ConstTensorView a_square,
                           ConstTensorView g_square, TensorView weight_grad, TensorView bias_grad) {
  const std::int64_t d = a_square.dim(0), out = g_square.dim(0);
  check_shape(operation, "the matrix of A", a_square, {d, d});
  check_shape(operation, "the matrix of G", g_square, {out, out});
  const std::int64_t width = d - (bias_grad.empty() ? 0 : 1);
  DKFAC_CHECK(weight_grad.numel() == out * width, "[", operation, "] the weight gradient ",
              weight_grad.shape(), " has ", weight_grad.numel(), " elements; G of width ", out,
              " and A of width ", d, bias_grad.empty() ? " without" : " with", " a bias need ", out,
              " x ", width);
  GradientView view{weight_grad.reshape({out, width}), {}, out, width, d};
  if (!bias_grad.empty()) view.bias = bias_grad.reshape({out, 1});
  return view;
}

/// product[out,d] = left' [dW | db], block by block, so that the gradient is never copied.
void multiply_left_transposed(Context& ctx, ConstTensorView left, const GradientView& v,
                              TensorView product) {
  ops::gemm(ctx, Trans::yes, Trans::no, 1, left, v.weight, 0, product.slice(1, 0, v.width));
  if (v.bias.empty()) return;
  ops::gemm(ctx, Trans::yes, Trans::no, 1, left, v.bias, 0, product.slice(1, v.width, 1));
}

/// [dW | db] = product[out,d] right[d,d]'.
void multiply_right_transposed(Context& ctx, ConstTensorView product, ConstTensorView right,
                               const GradientView& v) {
  ops::gemm(ctx, Trans::no, Trans::yes, 1, product, right.slice(0, 0, v.width), 0, v.weight);
  if (v.bias.empty()) return;
  ops::gemm(ctx, Trans::no, Trans::yes, 1, product, right.slice(0, v.width, 1), 0, v.bias);
}

/// x[r,c] /= rows[r] * columns[c] + lambda: one pass, beside four products.
template <class T>
void divide_by_products(TensorView x, ConstTensorView rows, ConstTensorView columns,
                        double lambda) {
  const std::int64_t n = x.dim(0), width = x.dim(1);
  const T* w_r = rows.data<T>();
  const T* w_c = columns.data<T>();
  T* data = x.data<T>();
  const T shift = static_cast<T>(lambda);
  for (std::int64_t r = 0; r < n; ++r) {
    T* row = data + r * x.stride(0);
    const T scale = w_r[r];
#pragma GCC ivdep
    for (std::int64_t c = 0; c < width; ++c) row[c] /= scale * w_c[c] + shift;
  }
}

/// x /= scales + lambda.
template <class T>
void divide_by_scales(TensorView x, ConstTensorView scales, double lambda) {
  T* data = x.data<T>();
  const T* s = scales.data<T>();
  const T shift = static_cast<T>(lambda);
  const std::int64_t n = x.numel();
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) data[i] /= s[i] + shift;
}

}  // namespace

void precondition(Context& ctx, ConstTensorView a_inverse, ConstTensorView g_inverse,
                  TensorView weight_grad, TensorView bias_grad) {
  const GradientView v =
      view_gradient("precondition", a_inverse, g_inverse, weight_grad, bias_grad);
  apply_factors(ctx, {FactorForm::inverse, a_inverse}, {FactorForm::inverse, g_inverse},
                {v.weight, v.bias});
}

void precondition_eigen(Context& ctx, ConstTensorView a_vectors, ConstTensorView a_values,
                        ConstTensorView g_vectors, ConstTensorView g_values, double lambda,
                        TensorView weight_grad, TensorView bias_grad, ConstTensorView scales) {
  constexpr std::string_view kName = "precondition eigen";
  const GradientView v = view_gradient(kName, a_vectors, g_vectors, weight_grad, bias_grad);
  check_shape(kName, "the eigenvalues of A", a_values, {v.d});
  check_shape(kName, "the eigenvalues of G", g_values, {v.out});
  DKFAC_CHECK(a_values.is_contiguous() && g_values.is_contiguous(),
              "[precondition eigen] the eigenvalues have strides; they must be contiguous");
  DKFAC_CHECK(lambda > 0 && std::isfinite(lambda), "[precondition eigen] lambda is ", lambda,
              "; it must be positive and finite");
  if (!scales.empty()) {
    check_shape(kName, "scales", scales, {v.out, v.d});
    DKFAC_CHECK(scales.is_contiguous(), "[precondition eigen] scales have gaps; they must not");
  }
  require_host(kName, weight_grad.device());
  Scratch scratch(ctx);
  const TensorView left = scratch.take({v.out, v.d}, weight_grad.dtype());
  const TensorView inner = scratch.take({v.out, v.d}, weight_grad.dtype());
  multiply_left_transposed(ctx, g_vectors, v, left);
  ops::gemm(ctx, Trans::no, Trans::no, 1, left, a_vectors, 0, inner);
  with_real(kName, inner.dtype(), [&](auto zero) {
    using T = decltype(zero);
    if (scales.empty()) {
      divide_by_products<T>(inner, g_values, a_values, lambda);
    } else {
      divide_by_scales<T>(inner, scales, lambda);
    }
  });
  ops::gemm(ctx, Trans::no, Trans::no, 1, g_vectors, inner, 0, left);
  multiply_right_transposed(ctx, left, a_vectors, v);
}

void precondition_batch_norm(Context&, BatchNormFisher mode, ConstTensorView fisher, double shift,
                             TensorView gamma_grad, TensorView beta_grad) {
  constexpr std::string_view kName = "precondition batch norm";
  const std::int64_t channels = beta_grad.numel();
  const bool fixed_gamma = gamma_grad.numel() == 0;
  const std::int64_t rows = batch_norm_rows({.channels = channels, .scale = !fixed_gamma}, mode);
  check_shape(kName, "the Fisher blocks", fisher, {rows, channels});
  DKFAC_CHECK(fixed_gamma || gamma_grad.numel() == channels, "[precondition batch norm] gamma has ",
              gamma_grad.numel(), " elements and beta ", channels, "; they must be equal");
  DKFAC_CHECK(fisher.is_contiguous() && gamma_grad.is_contiguous() && beta_grad.is_contiguous(),
              "[precondition batch norm] a view has gaps; all must be contiguous");
  DKFAC_CHECK(shift > 0 && std::isfinite(shift), "[precondition batch norm] shift is ", shift,
              "; it must be positive and finite");
  require_host(kName, fisher.device());
  with_real(kName, fisher.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* gg = fisher.data<T>();
    const T* gb = gg + channels;
    const T* bb = gg + (rows - 1) * channels;
    T* beta = beta_grad.data<T>();
    if (fixed_gamma) {
      for (std::int64_t c = 0; c < channels; ++c) beta[c] /= bb[c] + static_cast<T>(shift);
      return;
    }
    T* gamma = gamma_grad.data<T>();
    // In f64, since the determinant cancels. Rounded statistics can make its exact part, which is
    // not negative by Cauchy-Schwarz, slightly so.
    for (std::int64_t c = 0; c < channels; ++c) {
      const double a = gg[c], d = bb[c];
      const double b = mode == BatchNormFisher::diagonal ? 0.0 : static_cast<double>(gb[c]);
      const double x = gamma[c], y = beta[c];
      const double exact = std::max(a * d - b * b, 0.0);
      const double determinant = exact + shift * (a + d) + shift * shift;
      gamma[c] = static_cast<T>(((d + shift) * x - b * y) / determinant);
      beta[c] = static_cast<T>(((a + shift) * y - b * x) / determinant);
    }
  });
}

}  // namespace dkfac::kfac
