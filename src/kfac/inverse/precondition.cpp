#include <cmath>

#include "dkfac/core/ops.h"
#include "dkfac/kfac/inverse.h"
#include "dkfac/kfac/statistics.h"

#include "core/shared/checks.h"
#include "kfac/inverse/apply_factor.h"
#include "kfac/inverse/backend_inverse.h"

namespace dkfac::kfac {
namespace {

using ops::Trans;

/// Returns the gradient [dW | db] as an [out, d] matrix.
Columns view_gradient(std::string_view operation, ConstTensorView a_square,
                      ConstTensorView g_square, TensorView weight_grad, TensorView bias_grad) {
  const std::int64_t d = a_square.dim(0), out = g_square.dim(0);
  check_shape(operation, "the matrix of A", a_square, {d, d});
  check_shape(operation, "the matrix of G", g_square, {out, out});
  const std::int64_t width = d - (bias_grad.empty() ? 0 : 1);
  const bool fits =
      weight_grad.ndim() == 1 || (weight_grad.ndim() > 1 && weight_grad.dim(0) == out);
  DKFAC_CHECK(fits && weight_grad.numel() == out * width, "[", operation, "] the weight gradient ",
              "has shape ", weight_grad.shape(), "; G of width ", out, " and A of width ", d,
              bias_grad.empty() ? " without" : " with", " a bias need ", out, " x ", width);
  return {weight_grad.reshape({out, width}),
          bias_grad.empty() ? TensorView{} : bias_grad.reshape({out, 1})};
}

}  // namespace

void precondition(Context& ctx, ConstTensorView a_inverse, ConstTensorView g_inverse,
                  TensorView weight_grad, TensorView bias_grad) {
  const Columns v = view_gradient("precondition", a_inverse, g_inverse, weight_grad, bias_grad);
  apply_factors(ctx, {.inverse = a_inverse}, {.inverse = g_inverse}, v);
}

void precondition_eigen(Context& ctx, ConstTensorView a_vectors, ConstTensorView a_values,
                        ConstTensorView g_vectors, ConstTensorView g_values, double lambda,
                        TensorView weight_grad, TensorView bias_grad, ConstTensorView scales) {
  precondition_eigen(ctx, a_vectors, a_values, g_vectors, g_values, AppliedDamping{lambda},
                     weight_grad, bias_grad, scales);
}

void precondition_eigen(Context& ctx, ConstTensorView a_vectors, ConstTensorView a_values,
                        ConstTensorView g_vectors, ConstTensorView g_values,
                        const AppliedDamping& damping, TensorView weight_grad, TensorView bias_grad,
                        ConstTensorView scales) {
  constexpr std::string_view kName = "precondition eigen";
  const Columns v = view_gradient(kName, a_vectors, g_vectors, weight_grad, bias_grad);
  check_shape(kName, "the eigenvalues of A", a_values, {v.d()});
  check_shape(kName, "the eigenvalues of G", g_values, {v.rows()});
  DKFAC_CHECK(a_values.is_contiguous() && g_values.is_contiguous(),
              "[precondition eigen] the eigenvalues have strides; they must be contiguous");
  DKFAC_CHECK(damping.number > 0 && std::isfinite(damping.number),
              "[precondition eigen] lambda is ", damping.number,
              "; it must be positive and finite");
  if (!scales.empty()) {
    check_shape(kName, "scales", scales, {v.rows(), v.d()});
    DKFAC_CHECK(scales.is_contiguous(), "[precondition eigen] scales have gaps; they must not");
  }
  Scratch scratch(ctx);
  const TensorView left = scratch.take_aligned({v.rows(), v.d()}, weight_grad.dtype());
  const TensorView inner = scratch.take_aligned({v.rows(), v.d()}, weight_grad.dtype());
  // Part by part, so that the gradient is never copied.
  for_parts(v, v, [&](std::int64_t c, std::int64_t n) {
    ops::gemm(ctx, Trans::yes, Trans::no, 1, g_vectors, v.columns(c, n), 0, left.slice(1, c, n));
  });
  ops::gemm(ctx, Trans::no, Trans::no, 1, left, a_vectors, 0, inner);
  if (scales.empty()) {
    kernels::divide_by_products(ctx, inner, g_values, a_values, damping);
  } else {
    kernels::divide_by_scales(ctx, inner, scales, damping);
  }
  ops::gemm(ctx, Trans::no, Trans::no, 1, g_vectors, inner, 0, left);
  for_parts(v, v, [&](std::int64_t c, std::int64_t n) {
    ops::gemm(ctx, Trans::no, Trans::yes, 1, left, a_vectors.slice(0, c, n), 0, v.columns(c, n));
  });
}

void precondition_norms(Context& ctx, NormFisher mode, std::span<const NormGradient> norms) {
  constexpr std::string_view kName = "precondition batch norm";
  DKFAC_CHECK(mode != NormFisher::full,
              "[precondition batch norm] the full Fisher is one matrix of all channels; invert it "
              "with invert_factor() and multiply [gamma | beta] by the inverse");
  for (const auto& [fisher, gamma_grad, beta_grad, damping] : norms) {
    const std::int64_t channels = beta_grad.numel();
    const bool fixed_gamma = gamma_grad.numel() == 0;
    const std::int64_t rows = norm_rows({.channels = channels, .scale = !fixed_gamma}, mode);
    check_shape(kName, "the Fisher blocks", fisher, {rows, channels});
    check_memory(kName, "gamma's gradient", gamma_grad);
    check_memory(kName, "beta's gradient", beta_grad);
    DKFAC_CHECK(fixed_gamma || gamma_grad.numel() == channels,
                "[precondition batch norm] gamma has ", gamma_grad.numel(), " elements and beta ",
                channels, "; they must be equal");
    DKFAC_CHECK(fisher.is_contiguous() && gamma_grad.is_contiguous() && beta_grad.is_contiguous(),
                "[precondition batch norm] a view has gaps; all must be contiguous");
    DKFAC_CHECK(damping.number > 0 && std::isfinite(damping.number),
                "[precondition batch norm] shift is ", damping.number,
                "; it must be positive and finite");
  }
  kernels::solve_norms(ctx, mode, norms);
}

void precondition_norm(Context& ctx, NormFisher mode, ConstTensorView fisher, double shift,
                       TensorView gamma_grad, TensorView beta_grad) {
  const NormGradient norm{fisher, gamma_grad, beta_grad, {shift}};
  precondition_norms(ctx, mode, {&norm, 1});
}

}  // namespace dkfac::kfac
