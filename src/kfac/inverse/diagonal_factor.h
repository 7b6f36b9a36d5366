#pragma once

#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/layer_spec.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/kfac/options.h"

#include "core/shared/checks.h"
#include "kfac/inverse/layer_curvature.h"

/// What is done with a diagonal factor A, FactorPlan::is_diagonal(): that of an Embedding, the
/// frequency of each index.
namespace dkfac::kfac {

/// Returns the number of rows (samples times positions) of a record of the layer's input. Throws
/// InvalidArgument for data that does not fit the layer.
[[nodiscard]] std::int64_t diagonal_rows(const Caller& caller, const LayerSpec& spec,
                                         ConstTensorView input);
/// compute_a() for such a layer; checks input and `a`.
void compute_diagonal(Context& ctx, const Caller& caller, const LayerSpec& spec,
                      ConstTensorView input, double global_batch, double beta, TensorView a);

/// Renews the inverse from the average and the requested damping. This cannot fail: an average is
/// finite and not negative, and its damping positive.
void store_diagonal(Context& ctx, Factor& factor);
/// Preconditions the gradient of a layer with such an A, [weight_numel] in options.dtype.
void apply_diagonal(Context& ctx, const CurvatureOptions& options, const LayerCurvature& layer,
                    TensorView weight);
/// Turns a copy of Factor::inverse on the host into the inverse with this damping.
void invert_diagonal(TensorView copy, double shift);

}  // namespace dkfac::kfac
