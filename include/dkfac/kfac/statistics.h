#pragma once

#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/export.h"
#include "dkfac/core/layer_spec.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/kfac/options.h"

/// Statistics of one batch: free functions over views. Scaling (docs/math.md, "Scaling"): g is the
/// gradient of one sample's loss, A = sum a a' / (N P), G = sum g g' / N, with N samples over all
/// ranks and P positions. Every function computes this rank's part; summing over ranks gives the
/// statistic. `global_batch` is N; where only n_f of n local samples are given, it is N n_f / n, so
/// that the sum still estimates the statistic of the whole batch.
namespace dkfac::kfac {

/// s with (per-sample gradient) = s * (recorded gradient). local_batch: this rank's samples of the
/// step, of all its micro-batches; may be 0. global_batch and loss_scale must be positive.
[[nodiscard]] DKFAC_API double sample_gradient_scale(LossReduction reduction,
                                                     std::int64_t local_batch,
                                                     std::int64_t global_batch, double loss_scale);

/// Rounding of a factor operand and the power of two that keeps an f16 operand in range.
struct DKFAC_API Operand {
  DType type = DType::f32;
  /// Multiplies the operand before rounding; removed from the product again. A power of two from
  /// 2^-56 to 2^48, so that its square is a normal f32 number. Results do not depend on it unless
  /// elements leave the range of `type`.
  double scale = 1;
};
/// Power of two that brings `max_abs` to within [2^8, 2^12), far from f16's overflow (2^16) and
/// underflow, as far as the range of Operand::scale allows; 1 for other types and for a max_abs of
/// 0 or not finite.
[[nodiscard]] DKFAC_API double operand_scale(DType type, double max_abs);

/// Where range information of one operand goes; device memory, f32[1] each, or empty views.
struct DKFAC_API OperandStats {
  TensorView max_abs;    ///< Becomes max |x| before scaling; infinity for a NaN.
  TensorView underflow;  ///< += non-zero elements that rounded to 0.
};

/// Lower triangle of a[d,d] = beta*a + (1/(N P)) sum a a', d = a_dim(spec), or a[groups,d,d] for a
/// convolution of more than one group; a bias appends a 1 to every a, which is neither scaled nor
/// rounded. With WeightSharing::reduce, a is the mean over positions, and the sum is over samples
/// alone, over N. input: [n,in], [n,...,in] with P the product of the middle dimensions, or the
/// convolution's activation (contiguous), of any floating dtype; the operand (a, hence the mean) is
/// rounded to operand.type and multiplied in the dtype of `a`, f32 or f64. beta = 0 does not read
/// `a`. n may be 0. Nothing blocks the host. A device reads operands of 16 bits as such, so that
/// data which is of operand.type, and an f32 or f64 operand.type for data of 16 bits, cost no pass
/// over the data (unless stats.max_abs is given) and need no scale.
DKFAC_API void compute_a(Context& ctx, const LayerSpec& spec, ConstTensorView input,
                         double global_batch, Operand operand, OperandStats stats, double beta,
                         TensorView a, WeightSharing sharing = WeightSharing::expand);
/// The diagonal that is the whole A of an Embedding: a[vocabulary] = beta*a + (how often an index
/// occurs)/(N P), P the product of all dimensions of indices[n,...] but the first. i32, contiguous;
/// an index outside [0, vocabulary) throws InvalidArgument on the host and makes a[0] NaN on a
/// device. beta = 0 does not read `a`.
DKFAC_API void compute_a_diagonal(Context& ctx, const EmbeddingSpec& spec, ConstTensorView indices,
                                  double global_batch, double beta, TensorView a);
/// Lower triangle of g[out,out] = beta*g + (s^2/N) sum dy dy' over samples and positions, or
/// g[groups,out,out], out = g_dim(spec). With WeightSharing::reduce, dy is first summed over the
/// positions of its sample. grad_output: [n,out], [n,...,out], or the layer's output gradient
/// (contiguous); dtypes and beta as compute_a, s as above.
DKFAC_API void compute_g(Context& ctx, const LayerSpec& spec, ConstTensorView grad_output,
                         double global_batch, double s, Operand operand, OperandStats stats,
                         double beta, TensorView g, WeightSharing sharing = WeightSharing::expand);

/// Rows x with x'x = this rank's part of A, as compute_a() forms it (scale, bias, rounding), into
/// the first rows of x[capacity, a_dim]. Returns their number: one per sample and position, or per
/// sample with WeightSharing::reduce. Layers of one group; throws when x has too few rows.
[[nodiscard]] DKFAC_API std::int64_t a_rows(Context& ctx, const LayerSpec& spec,
                                            ConstTensorView input, double global_batch,
                                            Operand operand, OperandStats stats, TensorView x,
                                            WeightSharing sharing = WeightSharing::expand);
/// The same of G.
[[nodiscard]] DKFAC_API std::int64_t g_rows(Context& ctx, const LayerSpec& spec,
                                            ConstTensorView grad_output, double global_batch,
                                            double s, Operand operand, OperandStats stats,
                                            TensorView x,
                                            WeightSharing sharing = WeightSharing::expand);

/// Second moments of the gradient in the basis of EKFAC (George et al. 2018):
/// scales[out,d] = beta*scales + (1/N) sum over samples of (Q_g' dW Q_a)^2, elementwise, with
/// dW[out,d] the sample's own gradient, sum over positions of g a', the bias last; with
/// WeightSharing::reduce it is (sum of g)(mean of a)'. a_vectors[d,d], g_vectors[out,out]:
/// eigenvectors in columns, dtype of `scales` (f32 or f64). A convolution of more than one group
/// has [groups, ...] of all three. input, grad_output and s as above, of the same samples.
DKFAC_API void compute_ekfac_scales(Context& ctx, const LayerSpec& spec, ConstTensorView input,
                                    ConstTensorView grad_output, ConstTensorView a_vectors,
                                    ConstTensorView g_vectors, double global_batch, double s,
                                    WeightSharing sharing, double beta, TensorView scales);

/// Rows of the statistic of a normalisation. Of `channels` elements each: 2 (diagonal: gamma gamma,
/// beta beta) or 3 (unit-wise: gamma gamma, gamma beta, beta beta); 1 (beta beta) where gamma is
/// fixed. Of the full symmetric matrix: 2c, or c where gamma is fixed.
[[nodiscard]] DKFAC_API std::int64_t norm_rows(const NormSpec& spec, BatchNormFisher mode);
/// Elements of it: norm_rows times channels; full: the packed triangle.
[[nodiscard]] DKFAC_API std::int64_t norm_size(const NormSpec& spec, BatchNormFisher mode);
/// fisher[rows, c] = beta*fisher + (1/N) sum over samples of products of g_gamma, g_beta, with
/// g_gamma[n,c] = s * sum over positions of dy * xhat, g_beta[n,c] = s * sum over positions of dy,
/// xhat = (x - mean) * inv_std. Full: fisher[norm_size] is the packed lower triangle of
/// E[g g'], g = [g_gamma of all channels, g_beta of all channels], or g_beta alone. x, grad_output:
/// one floating dtype, contiguous; mean, inv_std: [c], or [groups,c] for ghost groups of
/// consecutive samples; with NormOver::channels [samples times positions]. With a fixed gamma only
/// the shapes of x, mean and inv_std matter, not their values. Diagonal and unit-wise: the same
/// bits at every number of threads. SP-NGD section 4.2.
DKFAC_API void compute_norm_fisher(Context& ctx, const NormSpec& spec, BatchNormFisher mode,
                                   ConstTensorView x, ConstTensorView mean, ConstTensorView inv_std,
                                   ConstTensorView grad_output, double global_batch, double s,
                                   double beta, TensorView fisher);

}  // namespace dkfac::kfac
