#pragma once

#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/kfac/layer_spec.h"
#include "dkfac/kfac/options.h"

/// Statistics of one batch: free functions over views. Scaling (docs/math.md, "Scaling"): g is the
/// gradient of one sample's loss, A = sum a a' / (N P), G = sum g g' / N, with N samples over all
/// ranks and P output positions. Every function computes this rank's part; summing over ranks gives
/// the statistic.
namespace dkfac::kfac {

/// s with (per-sample gradient) = s * (recorded gradient). local_batch may be 0; global_batch and
/// loss_scale must be positive.
[[nodiscard]] double sample_gradient_scale(LossReduction reduction, std::int64_t local_batch,
                                           std::int64_t global_batch, double loss_scale);

/// Rounding of a factor operand and the power of two that keeps an f16 operand in range.
struct Operand {
  DType type = DType::f32;
  /// Multiplies the operand before rounding; removed from the product again. A power of two from
  /// 2^-56 to 2^48, so that its square is a normal f32 number. Results do not depend on it unless
  /// elements leave the range of `type`.
  double scale = 1;
};
/// Power of two that brings `max_abs` to within [2^8, 2^12), far from f16's overflow (2^16) and
/// underflow, as far as the range of Operand::scale allows; 1 for other types and for a max_abs of
/// 0 or not finite.
[[nodiscard]] double operand_scale(DType type, double max_abs);

/// Where range information of one operand goes; device memory, f32[1] each, or empty views.
struct OperandStats {
  TensorView max_abs;    ///< Becomes max |x| before scaling; infinity for a NaN.
  TensorView underflow;  ///< += non-zero elements that rounded to 0.
};

/// Lower triangle of a[d,d] = beta*a + (1/(N P)) sum a a', d = a_dim(spec); a bias appends a 1 to
/// every a, which is neither scaled nor rounded. input: [n,in], or the layer's activation
/// (contiguous), of any floating dtype; it is rounded to operand.type and multiplied in the dtype
/// of `a`, f32 or f64. beta = 0 does not read `a`. n may be 0.
void compute_a(Context& ctx, const LayerSpec& spec, ConstTensorView input,
               std::int64_t global_batch, Operand operand, OperandStats stats, double beta,
               TensorView a);
/// Lower triangle of g[out,out] = beta*g + (s^2/N) sum dy dy' over samples and positions.
/// grad_output: [n,out], or the layer's output gradient (contiguous); dtypes and beta as compute_a,
/// s as above.
void compute_g(Context& ctx, const LayerSpec& spec, ConstTensorView grad_output,
               std::int64_t global_batch, double s, Operand operand, OperandStats stats,
               double beta, TensorView g);

/// Rows of a BatchNorm statistic: 2 (diagonal: gamma gamma, beta beta) or 3 (unit-wise: gamma
/// gamma, gamma beta, beta beta), each of `channels` elements; 1 (beta beta) where gamma is fixed.
[[nodiscard]] std::int64_t batch_norm_rows(const BatchNormSpec& spec, BatchNormFisher mode);
/// fisher[rows, c] = beta*fisher + (1/N) sum over samples of products of g_gamma, g_beta, with
/// g_gamma[n,c] = s * sum over positions of dy * xhat, g_beta[n,c] = s * sum over positions of dy,
/// xhat = (x - mean) * inv_std. x, grad_output: one floating dtype, contiguous; mean, inv_std: [c],
/// or [groups,c] for ghost groups of consecutive samples. With a fixed gamma only the shapes of x,
/// mean and inv_std matter, not their values. The same bits at every number of threads.
/// SP-NGD section 4.2.
void compute_batch_norm_fisher(Context& ctx, const BatchNormSpec& spec, BatchNormFisher mode,
                               ConstTensorView x, ConstTensorView mean, ConstTensorView inv_std,
                               ConstTensorView grad_output, std::int64_t global_batch, double s,
                               double beta, TensorView fisher);

}  // namespace dkfac::kfac
