#pragma once

#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/layer_spec.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/kfac/options.h"

#include "core/shared/checks.h"
#include "kfac/inverse/layer_curvature.h"

/// What is done with a factor A that is no matrix (FactorPlan::is_direct()). Its form and its data
/// are known here and in factor_plan.cpp alone.
namespace dkfac::kfac {

/// Returns the number of rows (samples times positions) of a record of the layer's input. Throws
/// InvalidArgument for data that does not fit the layer.
[[nodiscard]] std::int64_t direct_rows(const Caller& caller, const LayerSpec& spec,
                                       ConstTensorView input);
/// compute_a() for such a layer; checks input and a.
void compute_direct(Context& ctx, const Caller& caller, const LayerSpec& spec,
                    ConstTensorView input, double global_batch, double beta, TensorView a);

/// Computes the trace of the average, f64[1].
void direct_trace(Context& ctx, const Factor& factor, TensorView trace);
/// Renews the inverse from the average and the requested damping. This cannot fail: an average is
/// finite and not negative, and its damping positive.
void take_direct(Context& ctx, Factor& factor);
/// Preconditions the gradient of a layer with such an A, [weight_numel] in options.dtype.
void apply_direct(Context& ctx, const CurvatureOptions& options, const LayerCurvature& layer,
                  TensorView weight);
/// Turns a copy of Factor::inverse on the host into the inverse with this damping.
void invert_direct(TensorView copy, double shift);

}  // namespace dkfac::kfac
