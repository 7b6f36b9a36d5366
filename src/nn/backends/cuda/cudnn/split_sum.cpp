#include "nn/backends/cuda/cudnn/split_sum.h"

#include <algorithm>
#include <utility>

namespace dkfac::nn::cudnn {
namespace {

/// The engine of cuDNN that splits the sum, the side of its tiles, and the terms that a block adds
/// at once. In a version where another engine has this number the plan is rejected, or has no
/// workspace for partial sums, and the proposed plan is used.
constexpr std::int64_t kEngine = 1, kTile = 128, kTerms = 32;
/// Upper end of the knob's range.
constexpr std::int64_t kMostSlices = 128;

bool is_wide_gradient(const ConvWork& work) {
  return work.work == Work::weights && size_of(work.shape.dtype) == 2 && work.shape.groups == 1;
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

std::int64_t slices_of_sum(const ConvWork& work, int multiprocessors) {
  const ConvShape& s = work.shape;
  if (!is_wide_gradient(work)) return 1;
  const std::int64_t tiles = ceil_div(s.out, kTile) * ceil_div(s.patch(), kTile);
  const std::int64_t most = ceil_div(s.n * s.out_h * s.out_w, kTerms);
  // Rounded down: blocks of a second wave would cost as much as a whole wave.
  return std::max<std::int64_t>(1, std::min({multiprocessors / tiles, most, kMostSlices}));
}

bool divides_sum(const ConvWork& work, const Plan& plan) {
  const ConvShape& s = work.shape;
  const std::int64_t gradient = s.out * s.patch() * static_cast<std::int64_t>(size_of(DType::f32));
  return is_wide_gradient(work) && plan.workspace() >= 2 * gradient;
}

std::optional<Plan> split_plan(const Descriptor& graph, const Target& target, const Limits& limits,
                               const ConvWork& work, int multiprocessors,
                               const CompiledPlans* compiled) {
  const std::int64_t slices = slices_of_sum(work, multiprocessors);
  if (slices == 1) return std::nullopt;
  const EngineChoice choice{.engine = kEngine, .knobs = {{CUDNN_KNOB_TYPE_SPLIT_K_SLC, slices}}};
  const auto plan = plan_of(graph, target, limits, choice, compiled);
  if (plan == nullptr || !divides_sum(work, *plan)) return std::nullopt;
  return std::move(*plan);
}

}  // namespace dkfac::nn::cudnn
