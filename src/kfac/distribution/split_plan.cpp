#include "kfac/distribution/split_plan.h"

#include <algorithm>

#include "kfac/inverse/split_inverse.h"

namespace dkfac::kfac {
namespace {

bool is_factored(const FactorPlan& plan) { return plan.form == FactorForm::cholesky; }

/// Whether invert_split() makes the form.
bool can_split(const FactorPlan& plan) {
  return plan.groups == 1 && (plan.form == FactorForm::inverse || is_factored(plan));
}

/// send: the load of sending the whole inverse to another rank.
double shared(double load, double send, const FactorPlan& plan, int ranks) {
  if (ranks == 1) return load;
  const double messages = split_numel(plan.dim, ranks, is_factored(plan));
  return load * split_part(plan, ranks) + send * messages / static_cast<double>(sent_numel(plan));
}

int ranks_for(double load, double send, const FactorPlan& plan, int world_size, double mean) {
  if (!can_split(plan)) return 1;
  const int most = std::min(split_ranks(plan.dim), world_size);
  const auto work = [&](int ranks) { return shared(load, send, plan, ranks); };
  int best = 1;
  for (int ranks = 1; ranks <= most && work(best) > mean; ranks *= 2)
    if (work(ranks) < work(best)) best = ranks;
  return best;
}

}  // namespace

double split_part(const FactorPlan& plan, int ranks) {
  if (ranks == 1) return 1;
  const auto d = static_cast<double>(plan.dim);
  const bool factored = is_factored(plan);
  return split_flops(plan.dim, ranks, factored) / (factored ? d * d * d / 3 : d * d * d);
}

FactorLoads shared_load(FactorLoads load, const LayerSpec& spec, const CurvatureOptions& options,
                        Device device, int ranks_a, int ranks_g) {
  load.ranks_a = ranks_a;
  load.ranks_g = ranks_g;
  load.a = shared(load.a, load.send_a, plan_a(spec, options, device), ranks_a);
  load.g = shared(load.g, load.send_g, plan_g(spec, options, device), ranks_g);
  return load;
}

std::vector<FactorLoads> shared_loads(std::vector<FactorLoads> loads,
                                      std::span<const LayerSpec> specs,
                                      const CurvatureOptions& options, int world_size,
                                      Device device) {
  if (!options.distribution.split_wide) return loads;
  std::vector<FactorLoads> counted;
  double mean = 0;
  for (const LayerSpec& spec : specs) {
    counted.push_back(factor_loads(spec, options.dtype, options.inverse.block_width));
    mean += counted.back().whole() / world_size;
  }
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const LayerSpec& spec = specs[i];
    if (!has_factors(spec)) continue;
    const FactorLoads& c = counted[i];
    const int a = ranks_for(c.a, c.send_a, plan_a(spec, options, device), world_size, mean),
              g = ranks_for(c.g, c.send_g, plan_g(spec, options, device), world_size, mean);
    loads[i] = shared_load(loads[i], spec, options, device, a, g);
  }
  return loads;
}

}  // namespace dkfac::kfac
