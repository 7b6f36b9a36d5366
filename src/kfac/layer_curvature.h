#pragma once

#include <cstdint>
#include <string>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor.h"
#include "dkfac/kfac/layer_spec.h"
#include "dkfac/kfac/options.h"

/// Averages and inverses of one layer, held by its owner, and what is done with them.
namespace dkfac::kfac {

/// One of the two factors of a layer.
struct Factor {
  std::int64_t dim = 0;
  Tensor average;     ///< Packed triangle.
  Tensor inverse;     ///< [dim,dim]: the damped inverse, or the eigenvectors in columns.
  Tensor values;      ///< [dim]: eigenvalues; eigen path only.
  bool good = false;  ///< `inverse` holds a good one, perhaps of an earlier refresh.
};

struct LayerCurvature {
  Factor a, g;                  ///< Linear and Conv2d.
  Tensor fisher;                ///< BatchNorm: [rows,channels].
  std::int64_t statistics = 0;  ///< Merged so far.
  bool stale = false;           ///< Averages or damping have changed since the last refresh.
  int failures = 0;  ///< In a row: statistics refused, or refreshes that kept an old inverse.
};

/// Allocates what the owner of `spec` needs.
[[nodiscard]] LayerCurvature make_layer_curvature(Context& ctx, const LayerSpec& spec,
                                                  const CurvatureOptions& options);

/// average <- average with the next statistic, in packed form. A statistic whose trace is not
/// finite (its sum over ranks overflowed) is refused: false, nothing is touched.
[[nodiscard]] bool merge_factors(Context& ctx, const CurvatureOptions& options,
                                 ConstTensorView a_statistic, ConstTensorView g_statistic,
                                 LayerCurvature& layer);
[[nodiscard]] bool merge_fisher(Context& ctx, const CurvatureOptions& options,
                                ConstTensorView statistic, LayerCurvature& layer);

/// Preconditions in place; a layer without good inverses keeps its gradient. Gradients may have
/// another floating dtype than the inverses. weight: [weight_numel], bias: [bias_numel] or empty.
void apply_curvature(Context& ctx, const LayerSpec& spec, const CurvatureOptions& options,
                     const LayerCurvature& layer, TensorView weight, TensorView bias);

}  // namespace dkfac::kfac
