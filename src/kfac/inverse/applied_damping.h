#pragma once

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"

#include "core/shared/cuda/device_code.h"
#include "kfac/inverse/damping_split.h"

namespace dkfac::kfac {

/// The lambda of curvature that is inverted where it is applied: eigenvalues, and blocks of a
/// normalisation.
struct AppliedDamping {
  double number;  ///< lambda; with `trace` its fraction of that.
  /// The trace of the undamped curvature, of G weighted (damping_traces()), on its device: a
  /// relative lambda follows it also in work that was recorded. Null: lambda is absolute.
  const double* trace = nullptr;
  [[nodiscard]] DKFAC_HD double lambda() const {
    return trace == nullptr ? number : relative_lambda(number, *trace);
  }
};
/// lambda of eigenvalues, and of the blocks fisher[rows,channels] of a normalisation. Traces are
/// computed into the scratch memory.
[[nodiscard]] AppliedDamping eigen_damping(Context& ctx, Scratch& scratch,
                                           const CurvatureOptions& options,
                                           ConstTensorView a_values, ConstTensorView g_values);
[[nodiscard]] AppliedDamping norm_damping(Context& ctx, Scratch& scratch,
                                          const CurvatureOptions& options, ConstTensorView fisher);

/// precondition_eigen() of dkfac/kfac/inverse.h with such a lambda.
void precondition_eigen(Context& ctx, ConstTensorView a_vectors, ConstTensorView a_values,
                        ConstTensorView g_vectors, ConstTensorView g_values,
                        const AppliedDamping& damping, TensorView weight_grad, TensorView bias_grad,
                        ConstTensorView scales = {});

}  // namespace dkfac::kfac
