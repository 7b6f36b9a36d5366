#pragma once

#include "dkfac/core/context.h"
#include "dkfac/core/ops.h"

/// Which of the methods of ops::PatchMethod a convolution's factor is formed with.
namespace dkfac::cpu {

[[nodiscard]] bool applies(const ops::PatchSpec& spec, DType dtype, ops::PatchMethod method);
/// By the measurement of the most similar shape, among the methods that apply. The reference
/// backend takes panels.
[[nodiscard]] ops::PatchMethod fastest_method(Backend backend, const ops::PatchSpec& spec,
                                              DType dtype);

}  // namespace dkfac::cpu
