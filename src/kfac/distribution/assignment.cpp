#include "dkfac/kfac/assignment.h"

#include <algorithm>
#include <numeric>

#include "dkfac/core/error.h"
#include "dkfac/kfac/statistics.h"

#include "core/shared/index.h"
#include "kfac/inverse/factor_plan.h"

namespace dkfac::kfac {
namespace {

/// Upper bound for a BatchNorm: diagonal blocks have fewer elements.
std::int64_t fisher_numel(const LayerSpec& spec) {
  const auto* bn = std::get_if<NormSpec>(&spec);
  return bn == nullptr ? 0 : norm_rows(*bn, NormFisher::unit_wise) * bn->channels;
}

int least_loaded(std::span<const LayerLoad> ranks, bool by_bytes) {
  int best = 0;
  for (int r = 1; r < static_cast<int>(ranks.size()); ++r) {
    const LayerLoad &a = ranks[index_of(r)], &b = ranks[index_of(best)];
    const bool less_bytes = a.bytes < b.bytes;
    if (by_bytes ? less_bytes : a.flops < b.flops || (a.flops == b.flops && less_bytes)) best = r;
  }
  return best;
}

}  // namespace

LayerLoad layer_load(const LayerSpec& spec, DType dtype) {
  const FactorPlan a = default_plan_a(spec), g = default_plan_g(spec);
  const std::int64_t statistics = a.statistic_numel() + g.statistic_numel() + fisher_numel(spec);
  return {.flops = inverse_flops(a) + inverse_flops(g) + apply_operations(a, g.dim) +
                   apply_operations(g, a.dim),
          .bytes = (weight_numel(spec) + bias_numel(spec) + statistics) *
                   static_cast<std::int64_t>(size_of(dtype))};
}

std::vector<int> assign(std::span<const LayerLoad> loads, int world_size) {
  DKFAC_CHECK(world_size >= 1, "[assign] world_size is ", world_size, "; it must be >= 1");
  std::vector<int> order(loads.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int i, int j) {
    const LayerLoad &a = loads[index_of(i)], &b = loads[index_of(j)];
    if (a.flops != b.flops) return a.flops > b.flops;
    return a.flops == 0 && a.bytes > b.bytes;
  });
  std::vector<LayerLoad> ranks(index_of(world_size));
  std::vector<int> owners(loads.size(), 0);
  for (const int i : order) {
    const LayerLoad& load = loads[index_of(i)];
    const int owner = least_loaded(ranks, load.flops == 0);
    owners[index_of(i)] = owner;
    ranks[index_of(owner)].flops += load.flops;
    ranks[index_of(owner)].bytes += load.bytes;
  }
  return owners;
}

}  // namespace dkfac::kfac
