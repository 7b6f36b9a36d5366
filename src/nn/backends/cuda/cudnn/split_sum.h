#pragma once

#include <cstdint>
#include <optional>

#include "nn/backends/cuda/cudnn/conv_graph.h"
#include "nn/backends/cuda/cudnn/plan.h"

/// Gradients of weights in f32 of 16-bit activations with a divided sum. Such a gradient is small
/// and sums over all pixels, 802,816 of them in the first stage of ResNet-50. The plans that cuDNN
/// 9.19 proposes compute each tile of it by one block, so that a few multiprocessors do all of the
/// work. Its engine 1 divides the sum ("split K") where it is asked to.
namespace dkfac::nn::cudnn {

/// Into how many slices the sum of a gradient of weights is divided, so that its tiles occupy most
/// of `multiprocessors` at once; 1 where they do so undivided, and for other work.
[[nodiscard]] std::int64_t slices_of_sum(const ConvWork& work, int multiprocessors);

/// Whether the plan divides the sum: partial sums of the gradient are in its workspace.
[[nodiscard]] bool divides_sum(const ConvWork& work, const Plan& plan);

/// A plan with slices_of_sum(); none where that is 1, or where cuDNN has no such plan.
[[nodiscard]] std::optional<Plan> split_plan(const Descriptor& graph, const Target& target,
                                             const Limits& limits, const ConvWork& work,
                                             int multiprocessors,
                                             const CompiledPlans* compiled = nullptr);

}  // namespace dkfac::nn::cudnn
