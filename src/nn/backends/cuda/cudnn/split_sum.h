#pragma once

#include <cstdint>
#include <optional>

#include "nn/backends/cuda/cudnn/conv_graph.h"
#include "nn/backends/cuda/cudnn/plan.h"

/// Split sums for f32 gradients of weights from 16-bit activations. Such a gradient is small and
/// sums over all pixels, 802,816 of them in the first stage of ResNet-50. The plans that cuDNN 9.19
/// proposes compute each tile of it by one block, so that a few multiprocessors do all of the work.
/// Its engine 1 splits the sum ("split K") on request.
namespace dkfac::nn::cudnn {

/// Returns the number of slices into which the sum of a gradient of weights is split, so that its
/// tiles occupy most of `multiprocessors` at once. 1 where they do so without splitting, and for
/// other work.
[[nodiscard]] std::int64_t slices_of_sum(const ConvWork& work, int multiprocessors);

/// Whether the plan splits the sum, with partial sums of the gradient in its workspace.
[[nodiscard]] bool divides_sum(const ConvWork& work, const Plan& plan);

/// Returns a plan with slices_of_sum(); none where that is 1, or where cuDNN has no such plan.
[[nodiscard]] std::optional<Plan> split_plan(const Descriptor& graph, const Target& target,
                                             const Limits& limits, const ConvWork& work,
                                             int multiprocessors,
                                             const CompiledPlans* compiled = nullptr);

}  // namespace dkfac::nn::cudnn
