#pragma once

#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/kfac/options.h"

#include "core/shared/cuda/device_code.h"
#include "core/shared/kernel.h"
#include "kfac/inverse/layer_curvature.h"

/// AverageStart: what a running average holds before its first statistic.
namespace dkfac::kfac {

/// Parts of a statistic's diagonal, each of which begins at its own multiple of the identity.
struct AverageParts {
  std::int64_t triangle = 1;  ///< Width of the packed triangles; 1: elements of a diagonal.
  std::int64_t length = 0;    ///< Diagonal elements of a part.
  bool cross = false;         ///< The second part is off the diagonal, and begins at 0.

  /// Index of diagonal element k.
  [[nodiscard]] DKFAC_HD std::int64_t at(std::int64_t k) const {
    const std::int64_t size = triangle * (triangle + 1) / 2, r = k % triangle;
    return k / triangle * size + r * (r + 3) / 2;
  }
  /// Number of parts of a statistic of so many elements.
  [[nodiscard]] std::int64_t count(std::int64_t numel) const {
    return numel / (triangle * (triangle + 1) / 2) * triangle / length;
  }
};

/// Begins the average for AverageStart::identity and trace, before the statistic is merged as
/// number `statistics`, from 1. A part without a trace waits for a later statistic.
void begin_average(Context& ctx, AverageStart start, std::int64_t statistics,
                   const AverageParts& parts, ConstTensorView statistic, TensorView average);
/// Begins the average of EKFAC's second moments at the products of eigenvalues, which have been
/// applied in their place.
void begin_scales(Context& ctx, LayerCurvature& layer);

/// Writes the diagonal of each part of the average whose diagonal is zero: `value`, or where it is
/// 0 the mean of the statistic's diagonal. f32 or f64.
DKFAC_KERNEL(void, begin_parts, const AverageParts& parts, double value, ConstTensorView statistic,
             TensorView average);

}  // namespace dkfac::kfac
