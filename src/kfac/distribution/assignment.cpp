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

constexpr double kOperationsOfByte = 10;  ///< See factor_loads().

}  // namespace

FactorLoads factor_loads(const LayerSpec& spec, DType dtype, int block_width) {
  const FactorPlan a = in_blocks_a(default_plan_a(spec), spec, block_width),
                   g = in_blocks_g(default_plan_g(spec), spec, block_width);
  const std::int64_t statistics = a.statistic_numel() + g.statistic_numel() + fisher_numel(spec);
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  const auto send = [element](const FactorPlan& plan) {
    return kOperationsOfByte * static_cast<double>(element * sent_numel(plan));
  };
  return {.a = inverse_flops(a),
          .g = inverse_flops(g),
          .apply = apply_operations(a, g.width()) + apply_operations(g, a.width()),
          .send_a = send(a),
          .send_g = send(g),
          .bytes = (weight_numel(spec) + bias_numel(spec) + statistics) * element};
}

LayerLoad layer_load(const LayerSpec& spec, DType dtype, int block_width) {
  const FactorLoads loads = factor_loads(spec, dtype, block_width);
  return {.flops = loads.whole(), .bytes = loads.bytes};
}

}  // namespace dkfac::kfac
