#pragma once

#include "dkfac/core/context.h"
#include "dkfac/core/ops.h"

/// Choice of the ops::PatchMethod of a convolution's factor.
namespace dkfac::cpu {

[[nodiscard]] bool applies(const ops::PatchSpec& spec, DType dtype, ops::PatchMethod method);
/// Chooses, among the methods that apply, by the measurement of the most similar shape. The
/// reference backend uses panels.
[[nodiscard]] ops::PatchMethod fastest_method(Backend backend, const ops::PatchSpec& spec,
                                              DType dtype);

}  // namespace dkfac::cpu
