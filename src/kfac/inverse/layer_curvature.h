#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "dkfac/core/context.h"
#include "dkfac/core/layer_spec.h"
#include "dkfac/core/tensor.h"
#include "dkfac/kfac/options.h"

#include "kfac/inverse/apply_factor.h"
#include "kfac/inverse/factor_plan.h"

/// Averages and inverses of one layer, stored on the ranks that precondition it, and the operations
/// on them.
namespace dkfac::kfac {

/// One of the two factors of a layer (all of its groups, one after the other), or the full Fisher
/// matrix of a BatchNorm.
struct Factor : FactorPlan {
  Tensor average;  ///< [statistic_numel()]: triangles or rows, by the form.
  Tensor inverse;  ///< [inverse_shape()], Tensor::empty_aligned(): an operand of products.
  Tensor values;   ///< eigen: [groups,dim] eigenvalues.
  /// f64[groups]: the damping in `inverse`, representable in its dtype; not positive where there is
  /// no valid inverse. The low-rank form divides by it. On the device of the inverse.
  Tensor shifts;
  /// f64[groups], on the same device as `shifts`: the damping requested for the next refresh.
  /// Negative where the curvature of the layer is zero: the inverse is then I/|requested_damping|.
  /// Set by add_refresh_tasks().
  Tensor requested_damping;
  /// f64[damped_groups()], where A and G are averaged by different ranks: the traces of the average
  /// of the last rebuild, sent by the rank that has it. Not set otherwise.
  Tensor traces;
  /// Host, i32[groups]: the index of the form of `inverse`, which is that of an explicit one where
  /// a fallback stage replaced a Cholesky factor. Saved and shared together with `inverse` and
  /// `shifts`. On CUDA always that of `form`.
  Tensor stored_form;
  std::int64_t statistics = 0;  ///< Merged so far.
  bool stale = false;           ///< Average or damping has changed since the last refresh.
  bool valid = false;           ///< `inverse` is valid, perhaps from an earlier refresh.
  int refused = 0;              ///< Consecutive statistics that were not finite.
  int failures = 0;             ///< Consecutive refreshes that kept an old inverse.
  int failed_group = -1;        ///< First group that failed in the last refresh; -1: none.
};

struct LayerCurvature {
  Factor a, g;    ///< Where has_factors(); NormFisher::full: `g` alone, 2c wide.
  Tensor fisher;  ///< Other BatchNorms: [rows,channels].
  std::int64_t fisher_statistics = 0;  ///< Merged so far.
  int fisher_refused = 0;              ///< Consecutive ones.
  /// EKFAC: [groups,out,d], the average of squared gradients along pairs of eigenvectors, and the
  /// number of statistics in it. They belong to the eigenvectors: a refresh that replaces these
  /// resets the average.
  Tensor scales;
  std::int64_t scale_statistics = 0;
  int scales_refused = 0;  ///< Consecutive ones.
};

/// Allocates what a rank that preconditions `spec` needs.
[[nodiscard]] LayerCurvature make_layer_curvature(Context& ctx, const LayerSpec& spec,
                                                  const CurvatureOptions& options);

/// Computes finite_check[1] (f64, on the device of the statistic). It is finite where the statistic
/// may enter an average, and not finite where an element is infinite or NaN because its sum over
/// ranks overflowed. plan: of the factor; not set for the blocks of a BatchNorm and the scales of
/// EKFAC.
///
/// For factors it is the sum of the diagonals: no element of a positive semidefinite matrix exceeds
/// its largest diagonal element. Of all others it is the largest magnitude.
void check_finite(Context& ctx, const FactorPlan& plan, ConstTensorView statistic,
                  TensorView finite_check);

/// Merge the next statistic into the average, in packed form (low_rank: rows, which replace the
/// previous ones). Return false where finite_check is not finite: nothing but `refused` is changed
/// then. finite_check: the result of check_finite() on the host. Unset: it is computed here, for
/// which the host waits on a device. part: AverageParts::length; 0: the width of the factor.
[[nodiscard]] bool merge_factor(Context& ctx, const CurvatureOptions& options,
                                ConstTensorView statistic, Factor& factor,
                                std::optional<double> finite_check = std::nullopt,
                                std::int64_t part = 0);
[[nodiscard]] bool merge_fisher(Context& ctx, const CurvatureOptions& options,
                                ConstTensorView statistic, LayerCurvature& layer,
                                std::optional<double> finite_check = std::nullopt);

/// EKFAC: merges the next statistic, [out * d] elements, into the average of the scales; returns
/// false as merge_factor().
[[nodiscard]] bool merge_scales(Context& ctx, const CurvatureOptions& options,
                                ConstTensorView statistic, LayerCurvature& layer,
                                std::optional<double> finite_check = std::nullopt);

/// The average of one group, FactorPlan::average_shape().
[[nodiscard]] ConstTensorView average_of(const Factor& factor, int group);
/// The form of the inverse of one group.
[[nodiscard]] inline auto stored_form(const Factor& factor, int group) {
  return factor.form->at(factor.stored_form.data<std::int32_t>()[group]);
}
/// One group of a factor with a valid inverse, not of eigenvectors, as it is applied; all blocks of
/// one in blocks.
[[nodiscard]] AppliedFactor applied_factor(const Factor& factor, int group);
/// Whether everything that apply_curvature() needs of the layer has been inverted successfully at
/// least once.
[[nodiscard]] bool has_inverse(const LayerSpec& spec, const LayerCurvature& layer);
/// Preconditions in place; the gradient of a layer without an inverse stays unchanged. Gradients
/// may have another floating dtype than the inverses. weight: [weight_numel], bias: [bias_numel] or
/// empty.
void apply_curvature(Context& ctx, const LayerSpec& spec, const CurvatureOptions& options,
                     const LayerCurvature& layer, TensorView weight, TensorView bias);

/// The gradient of a layer, as in apply_curvature().
struct LayerGradient {
  const LayerSpec* spec = nullptr;
  const LayerCurvature* layer = nullptr;
  TensorView weight = {}, bias = {};
};
/// The shape in which layers agree that are preconditioned together. All 0: that of normalisations
/// of any width.
struct BatchShape {
  std::int64_t out = 0, d = 0;
  bool bias = false;
  bool operator==(const BatchShape&) const = default;
};
/// Returns nothing where the layer is preconditioned by itself: on the host, and where a factor has
/// groups or its inverse is not explicit, also that of NormFisher::full.
[[nodiscard]] std::optional<BatchShape> batch_shape(const LayerSpec& spec,
                                                    const CurvatureOptions& options, Device device);
/// apply_curvature() of layers with one batch_shape(), or of one layer. Gradients of the dtype of
/// the inverses are preconditioned together, by apply_inverses() or precondition_norms().
void apply_curvature(Context& ctx, const CurvatureOptions& options,
                     std::span<const LayerGradient> layers, ProductBatch& batch);

}  // namespace dkfac::kfac
