#pragma once

#include <span>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/kfac/options.h"

#include "kfac/inverse/applied_damping.h"

namespace dkfac::kfac {

/// The Fisher blocks of a normalisation and its gradients, as of precondition_norm().
struct NormGradient {
  ConstTensorView fisher;
  TensorView gamma, beta;
  AppliedDamping damping;
};

/// precondition_norm() of several normalisations of one dtype, of any widths, together.
void precondition_norms(Context& ctx, NormFisher mode, std::span<const NormGradient> norms);

}  // namespace dkfac::kfac
