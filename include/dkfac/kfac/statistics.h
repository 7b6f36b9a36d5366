#pragma once

#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/export.h"
#include "dkfac/core/layer_spec.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/kfac/options.h"

/// Free functions over views that compute the statistics of one batch.
///
/// With the gradient g of one sample's loss, N samples over all ranks and P positions
/// (docs/math.md, "Scaling"):
///   A = sum a a' / (N P), G = sum g g' / N.
/// Every function computes this rank's part; summing over ranks gives the statistic. `global_batch`
/// is N. Where only n_f of n local samples are given, it is N n_f / n, so that the sum still
/// estimates the statistic of the whole batch.
namespace dkfac::kfac {

/// Returns sample_scale, with (per-sample gradient) = sample_scale * (recorded gradient).
/// local_batch: this rank's samples of the step, of all its micro-batches; may be 0. global_batch
/// and loss_scale must be positive.
[[nodiscard]] DKFAC_API double sample_gradient_scale(LossReduction reduction,
                                                     std::int64_t local_batch,
                                                     std::int64_t global_batch, double loss_scale);

/// Rounding of a factor operand and the power of two that keeps an f16 operand in range.
struct DKFAC_API Operand {
  DType type = DType::f32;
  /// Multiplies the operand before rounding; the product is divided by its square. A power of two
  /// from 2^-56 to 2^48, so that its square is a normal f32 number. It does not change results
  /// unless elements leave the range of `type`.
  double scale = 1;
};
/// Returns the power of two that brings `max_abs` to within [2^8, 2^12), as far as the range of
/// Operand::scale allows: far from f16's overflow (2^16) and underflow. Returns 1 for other types,
/// and for a max_abs of 0 or not finite.
[[nodiscard]] DKFAC_API double operand_scale(DType type, double max_abs);

/// Outputs for the range of one operand: device memory, f32[1] each, or empty views.
struct DKFAC_API OperandStats {
  TensorView max_abs;    ///< Set to max |x| before scaling; infinity for a NaN.
  TensorView underflow;  ///< Incremented by the number of non-zero elements that rounded to 0.
};

/// One record of a layer with Kronecker factors.
struct DKFAC_API FactorRecord {
  /// Of compute_a(), the layer's input: [n,in], [n,...,in] with P the product of the middle
  /// dimensions, or the convolution's activation. Of compute_g(), the gradient of its output:
  /// [n,out], [n,...,out], or as the convolution's output. Contiguous, of any floating dtype; n may
  /// be 0.
  ConstTensorView data = {};
  double global_batch = 0;  ///< N (above), > 0.
  double sample_scale = 1;  ///< G: of sample_gradient_scale().
  Operand operand = {};
  OperandStats stats = {};
  WeightSharing sharing = WeightSharing::expand;
};

/// Computes the lower triangle of a[d,d] = beta*a + (1/(N P)) sum a a', d = a_dim(spec), or of
/// a[groups,d,d] for a convolution of more than one group. With a bias, a 1 is appended to every a,
/// neither scaled nor rounded. With WeightSharing::reduce, a is the mean over positions, and the
/// sum is over samples alone, divided by N.
///
/// The operand (a, hence the mean) is rounded to operand.type and multiplied in the dtype of `a`,
/// f32 or f64. beta = 0 does not read `a`.
///
/// The host is never blocked. A device reads 16-bit operands directly. So no pass over the data
/// (unless stats.max_abs is given) and no scale is needed where the data already has operand.type,
/// or has 16 bits while operand.type is f32 or f64.
/// The A of an Embedding is diagonal: a[vocabulary] = beta*a + (number of times an index occurs)/(N
/// P), of contiguous i32 indices data[n,...] at P positions each; or beta*a + (1/N) sum of the rows
/// of contiguous f64 or f32 data[n,vocabulary], which are diagonals of samples. Operand, stats and
/// sharing have no effect. An index out of range or a negative number throws InvalidArgument on the
/// host; on a device that index sets a[0] to NaN, and a negative number is not looked for.
DKFAC_API void compute_a(Context& ctx, const LayerSpec& spec, const FactorRecord& input,
                         double beta, TensorView a);
/// Computes the lower triangle of g[out,out] = beta*g + (sample_scale^2/N) sum dy dy' over samples
/// and positions, or of g[groups,out,out], out = g_dim(spec). With WeightSharing::reduce, dy is
/// first summed over the positions of its sample. Dtypes and beta are as in compute_a().
DKFAC_API void compute_g(Context& ctx, const LayerSpec& spec, const FactorRecord& grad_output,
                         double beta, TensorView g);

/// Writes rows x with x'x = this rank's part of A, as compute_a() forms it (scale, bias, rounding),
/// to the first rows of x[capacity, a_dim]. Returns their number: one per sample and position, or
/// one per sample with WeightSharing::reduce. Layers of one group only, and no Embedding; throws
/// when x has too few rows.
[[nodiscard]] DKFAC_API std::int64_t a_rows(Context& ctx, const LayerSpec& spec,
                                            const FactorRecord& input, TensorView x);
/// Writes rows x with x'x = this rank's part of G; see a_rows().
[[nodiscard]] DKFAC_API std::int64_t g_rows(Context& ctx, const LayerSpec& spec,
                                            const FactorRecord& grad_output, TensorView x);

/// Computes the second moments of the gradient in the basis of EKFAC (George et al. 2018),
/// elementwise:
///   scales[out,d] = beta*scales + (1/N) sum over samples of (Q_g' dW Q_a)^2.
/// dW[out,d] is the sample's own gradient, the sum over positions of g a', with the bias last. With
/// WeightSharing::reduce it is (sum of g)(mean of a)'.
///
/// input, grad_output: of the same samples, as in compute_a() and compute_g(). a_vectors[d,d],
/// g_vectors[out,out]: eigenvectors in columns, in the dtype of `scales` (f32 or f64). For a
/// convolution of more than one group, these and `scales` have a leading dimension [groups, ...].
/// grad_output.operand and stats have no effect.
DKFAC_API void compute_ekfac_scales(Context& ctx, const LayerSpec& spec, ConstTensorView input,
                                    const FactorRecord& grad_output, ConstTensorView a_vectors,
                                    ConstTensorView g_vectors, double beta, TensorView scales);

/// Number of elements of the statistics of A and G as they are exchanged: the packed triangles of
/// all groups, and the diagonal of an Embedding's A. 0 for layers without factors. Rows
/// (StatisticsOptions::low_rank) are fewer or more.
[[nodiscard]] DKFAC_API std::int64_t a_size(const LayerSpec& spec);
[[nodiscard]] DKFAC_API std::int64_t g_size(const LayerSpec& spec);
/// Number of rows of a normalisation's statistic.
/// - diagonal: 2 rows of `channels` elements (gamma gamma, beta beta);
/// - unit_wise: 3 (gamma gamma, gamma beta, beta beta);
/// - diagonal or unit_wise with a fixed gamma: 1 (beta beta);
/// - full: the order of the symmetric matrix, 2c, or c with a fixed gamma.
[[nodiscard]] DKFAC_API std::int64_t norm_rows(const NormSpec& spec, NormFisher mode);
/// Number of elements of a normalisation's statistic: norm_rows() times channels; with full, the
/// size of the packed triangle.
[[nodiscard]] DKFAC_API std::int64_t norm_size(const NormSpec& spec, NormFisher mode);

/// One record of a normalisation.
struct DKFAC_API NormRecord {
  ConstTensorView x = {};  ///< Its input, contiguous, of any floating dtype.
  /// [c], or [groups,c] for ghost groups of consecutive samples; with NormOver::channels [samples
  /// times positions].
  ConstTensorView mean = {}, inv_std = {};
  ConstTensorView grad_output = {};  ///< As x.
  double global_batch = 0;           ///< N (above), > 0.
  double sample_scale = 1;           ///< Of sample_gradient_scale().
};
/// The gradients of each sample, which a backward pass may have summed for its own:
/// [samples,2,c], or [groups,samples of a group,2,c], f32 or f64, contiguous, with the sums over
/// positions of dy * xhat and of dy. With a fixed gamma the former are not used.
struct DKFAC_API NormSampleRecord {
  ConstTensorView gradients = {};
  double global_batch = 0, sample_scale = 1;  ///< As in NormRecord.
};
/// Computes the statistic of a normalisation (SP-NGD section 4.2),
///   fisher[rows,c] = beta*fisher + (1/N) sum over samples of products of g_gamma, g_beta,
/// with xhat = (x - mean) * inv_std and, per sample,
///   g_gamma[n,c] = sample_scale * sum over positions of dy * xhat,
///   g_beta[n,c] = sample_scale * sum over positions of dy.
/// With full, fisher[norm_size] is the packed lower triangle of E[g g'], g = [g_gamma of all
/// channels, g_beta of all channels], or g_beta alone with a fixed gamma.
///
/// With a fixed gamma the values of x, mean and inv_std are not read, only their shapes. With
/// diagonal and unit_wise, the result is bitwise identical for every number of threads.
DKFAC_API void compute_norm_fisher(Context& ctx, const NormSpec& spec, NormFisher mode,
                                   const NormRecord& record, double beta, TensorView fisher);
DKFAC_API void compute_norm_fisher(Context& ctx, const NormSpec& spec, NormFisher mode,
                                   const NormSampleRecord& record, double beta, TensorView fisher);

}  // namespace dkfac::kfac
