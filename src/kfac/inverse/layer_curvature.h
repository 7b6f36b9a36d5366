#pragma once

#include <cstdint>
#include <optional>

#include "dkfac/core/context.h"
#include "dkfac/core/layer_spec.h"
#include "dkfac/core/tensor.h"
#include "dkfac/kfac/options.h"

#include "kfac/inverse/apply_factor.h"
#include "kfac/inverse/factor_plan.h"

/// Averages and inverses of one layer, held by the ranks that precondition it, and what is done
/// with them.
namespace dkfac::kfac {

/// One of the two factors of a layer (of each of its groups, one after the other), or the full
/// Fisher matrix of a BatchNorm.
struct Factor : FactorPlan {
  Tensor average;  ///< [statistic_numel()]: triangles, rows, or a diagonal.
  Tensor inverse;  ///< [inverse_shape()]
  Tensor values;   ///< eigen: [groups,dim] eigenvalues.
  /// f64[groups]: the damping in `inverse`, representable in its dtype; 0 before the first good
  /// one. The low-rank form divides by it. On the device, if the inverse is there.
  Tensor shifts;
  /// f64[groups], beside `shifts`: the damping asked of the next refresh, negative where the
  /// curvature of the layer is zero, so that the inverse is I/|requested_damping|. Set by
  /// add_refresh_tasks().
  Tensor requested_damping;
  /// Host, i32[groups]: the FactorForm in `inverse`, which is FactorForm::inverse where the ladder
  /// had to leave FactorForm::cholesky. Goes with `inverse` and `shifts`, wherever they go. On CUDA
  /// always `form`.
  Tensor stored_form;
  std::int64_t statistics = 0;  ///< Merged so far.
  bool stale = false;           ///< Average or damping have changed since the last refresh.
  bool good = false;            ///< `inverse` holds a good one, perhaps of an earlier refresh.
  int refused = 0;              ///< Statistics in a row that were not finite.
  int failures = 0;             ///< Refreshes in a row that kept an old inverse.
  int failed_group = -1;        ///< First group that did so in the last refresh; -1: none.
};

struct LayerCurvature {
  Factor a, g;    ///< Linear, Conv2d, Embedding; BatchNormFisher::full: `g` alone, 2c wide.
  Tensor fisher;  ///< BatchNorm otherwise: [rows,channels].
  std::int64_t fisher_statistics = 0;  ///< Merged so far.
  int fisher_refused = 0;              ///< In a row.
  /// EKFAC: [groups,out,d] average of squared gradients along pairs of eigenvectors, and how many
  /// it is of. They belong to the eigenvectors: a refresh that replaces these starts again.
  Tensor scales;
  std::int64_t scale_statistics = 0;
  int scales_refused = 0;  ///< In a row.
};

/// Allocates what a rank that preconditions `spec` needs.
[[nodiscard]] LayerCurvature make_layer_curvature(Context& ctx, const LayerSpec& spec,
                                                  const CurvatureOptions& options);

/// finite_check[1] (f64, where the statistic is): finite where the statistic may enter an average,
/// not so where an element of it is infinite or NaN because its sum over ranks overflowed. plan: of
/// its factor; not set for the blocks of a BatchNorm and the scales of EKFAC. Of triangles it is
/// the sum of the diagonals: no element of a positive semidefinite matrix exceeds its largest
/// diagonal one. Of rows X, which stand for X'X, the sum of their squares.
void check_finite(Context& ctx, const FactorPlan& plan, ConstTensorView statistic,
                  TensorView finite_check);

/// average <- average with the next statistic, in packed form (low_rank: rows, which replace those
/// before). False where finite_check is not finite: nothing is touched but `refused`. finite_check:
/// that of check_finite(), as the host has read it; unset: it is asked here, for which the host
/// waits on a device.
[[nodiscard]] bool merge_factor(Context& ctx, const CurvatureOptions& options,
                                ConstTensorView statistic, Factor& factor,
                                std::optional<double> finite_check = std::nullopt);
[[nodiscard]] bool merge_fisher(Context& ctx, const CurvatureOptions& options,
                                ConstTensorView statistic, LayerCurvature& layer,
                                std::optional<double> finite_check = std::nullopt);

/// EKFAC: scales <- average with the next statistic, [out * d] elements; false as above.
[[nodiscard]] bool merge_scales(Context& ctx, const CurvatureOptions& options,
                                ConstTensorView statistic, LayerCurvature& layer,
                                std::optional<double> finite_check = std::nullopt);

/// One group of a factor with a good inverse, not FactorForm::eigen.
[[nodiscard]] AppliedFactor applied_factor(const Factor& factor, int group);
/// All that apply_curvature() takes of the layer has been inverted with success at least once.
[[nodiscard]] bool has_inverse(const LayerSpec& spec, const LayerCurvature& layer);
/// Preconditions in place; a layer without an inverse keeps its gradient. Gradients may have
/// another floating dtype than the inverses. weight: [weight_numel], bias: [bias_numel] or empty.
void apply_curvature(Context& ctx, const LayerSpec& spec, const CurvatureOptions& options,
                     const LayerCurvature& layer, TensorView weight, TensorView bias);

}  // namespace dkfac::kfac
