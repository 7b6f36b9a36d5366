#include "dkfac/kfac/assignment.h"

#include "dkfac/kfac/statistics.h"

#include "kfac/inverse/factor_plan.h"

namespace dkfac::kfac {
namespace {

/// Upper bound for a BatchNorm: diagonal blocks have fewer elements.
std::int64_t fisher_numel(const LayerSpec& spec) {
  const auto* bn = std::get_if<NormSpec>(&spec);
  return bn == nullptr ? 0 : norm_rows(*bn, NormFisher::unit_wise) * bn->channels;
}

}  // namespace

LayerLoad layer_load(const LayerSpec& spec, DType dtype, int block_width) {
  const FactorPlan a = in_blocks_a(default_plan_a(spec), spec, block_width),
                   g = in_blocks_g(default_plan_g(spec), spec, block_width);
  const std::int64_t statistics = a.statistic_numel() + g.statistic_numel() + fisher_numel(spec);
  return {.flops = inverse_flops(a) + inverse_flops(g) + apply_operations(a, g.width()) +
                   apply_operations(g, a.width()),
          .bytes = (weight_numel(spec) + bias_numel(spec) + statistics) *
                   static_cast<std::int64_t>(size_of(dtype))};
}

}  // namespace dkfac::kfac
