#pragma once

#include <cstdint>
#include <vector>

#include "dkfac/core/export.h"
#include "dkfac/core/tensor.h"

namespace dkfac::kfac {

/// One factor of a layer, copied to the host, in CurvatureOptions::dtype. Matrices are whole and
/// symmetric, [d,d]; those of a convolution of several groups [groups,d,d]; the A of an Embedding
/// and its inverse are diagonals, [d]. What a rank does not hold, or has not made yet, is not set
/// (Tensor::is_set()).
struct DKFAC_API FactorCopy {
  /// The statistic of docs/math.md, "Scaling", averaged with bias correction ("Average"), without
  /// damping. On the owner of the layer.
  Tensor average;
  std::int64_t statistics = 0;  ///< How many it is the average of.
  /// (average + damping I)^-1 as gradients are multiplied by it: of the last refresh, hence of an
  /// older average where inverses have longer intervals. On the owner and the other workers of the
  /// layer (DistributionOptions::grad_worker_fraction). Not of InverseMethod::eigen and ekfac.
  Tensor inverse;
  /// Per group: the factor's share of lambda (split_damping()), or ten times as much (docs/math.md,
  /// "Ladder", which may also end in eigenvalues below 0 taken as 0). Where a factor of the layer
  /// is zero, `inverse` is I/damping. Empty without `inverse`.
  std::vector<double> damping;
  /// Of InverseMethod::eigen and ekfac in the place of `inverse`: eigenvectors in columns and
  /// eigenvalues, [d] or [groups,d], ascending and >= 0; of a diagonal itself, in its order,
  /// without vectors. lambda comes in where they are used.
  Tensor vectors, values;
};

/// What a rank holds of the curvature of a layer (read_factors()).
struct DKFAC_API LayerFactors {
  int owner = -1;  ///< The rank that holds all of it; -1: nobody, without curvature.
  /// Linear, Conv2d, Embedding; BatchNormFisher::full: `g` alone, [gamma | beta].
  FactorCopy a, g;
  /// BatchNorm otherwise: the average of the blocks, [rows,channels] as compute_norm_fisher()
  /// has them, without damping. On the owner and the other workers.
  Tensor batch_norm;
  /// EKFAC: the average of the moments, [out,d] or [groups,out,d], along the vectors of g and a;
  /// not set while products of eigenvalues stand in for it.
  Tensor scales;
};

}  // namespace dkfac::kfac
