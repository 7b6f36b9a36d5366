#pragma once

#include <cstdint>
#include <vector>

#include "dkfac/core/export.h"
#include "dkfac/core/tensor.h"

namespace dkfac::kfac {

/// One factor of a layer, copied to the host, in CurvatureOptions::dtype. Matrices are full and
/// symmetric, [d,d], or [groups,d,d] for a convolution of several groups. The A of an Embedding and
/// its inverse are diagonals, [d]. Tensors that this rank does not hold, or has not computed yet,
/// are not set (Tensor::is_set()).
struct DKFAC_API FactorCopy {
  /// Running average with bias correction ("Average") of the statistic of docs/math.md, "Scaling",
  /// without damping. On the rank that averages the factor: the owner of the layer, unless
  /// DistributionOptions::split_factors has chosen another.
  Tensor average;
  std::int64_t statistics = 0;  ///< Number of statistics in the average.
  /// (average + damping I)^-1 as it is applied to gradients. It is of the last rebuild, hence of an
  /// older average where inverse_interval is longer. On the rank that averages the factor, and on
  /// the owner and the other workers of the layer (DistributionOptions::grad_worker_fraction). Not
  /// set with InverseMethod::eigen and ekfac.
  Tensor inverse;
  /// Damping of each group: the factor's part of lambda (split_damping()), or ten times as much
  /// after a fallback (docs/math.md, "Robust inversion"; the last stage sets negative eigenvalues
  /// to 0). Where a factor of the layer is zero, `inverse` is I/damping. Empty without `inverse`.
  std::vector<double> damping;
  /// Set instead of `inverse` with InverseMethod::eigen and ekfac: eigenvectors in columns, and
  /// eigenvalues [d] or [groups,d], ascending and >= 0. For a diagonal factor `values` is the
  /// diagonal itself, in its own order, and `vectors` is not set. lambda is added where they are
  /// applied.
  Tensor vectors, values;
};

/// What a rank holds of the curvature of a layer (read_factors()).
struct DKFAC_API LayerFactors {
  int owner =
      -1;  ///< The rank that holds all of it, but for FactorCopy::average; -1: no curvature.
  /// Factors of a Linear, Conv2d or Embedding; with NormFisher::full `g` alone, over [gamma |
  /// beta].
  FactorCopy a, g;
  /// Other BatchNorms: the average of the blocks, [rows,channels] as of compute_norm_fisher(),
  /// without damping. On the owner and the other workers.
  Tensor norm;
  /// EKFAC: the average of the second moments along the vectors of g and a, [out,d] or
  /// [groups,out,d]. Not set while products of eigenvalues are used instead.
  Tensor scales;
};

}  // namespace dkfac::kfac
