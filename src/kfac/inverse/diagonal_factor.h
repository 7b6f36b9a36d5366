#pragma once

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/kfac/options.h"

#include "kfac/inverse/layer_curvature.h"

/// The inverse of a diagonal factor A, FactorPlan::is_diagonal(): that of an Embedding.
namespace dkfac::kfac {

/// Renews the inverse from the average and the requested damping. This cannot fail: an average is
/// finite and not negative, and its damping positive.
void store_diagonal(Context& ctx, Factor& factor);
/// Preconditions the gradient of a layer with such an A, [weight_numel] in options.dtype.
void apply_diagonal(Context& ctx, const CurvatureOptions& options, const LayerCurvature& layer,
                    TensorView weight);
/// Turns a copy of Factor::inverse on the host into the inverse with this damping.
void invert_diagonal(TensorView copy, double shift);

}  // namespace dkfac::kfac
