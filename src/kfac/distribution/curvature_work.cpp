#include "kfac/shared/curvature_work.h"

#include <algorithm>

#include "comm/collective/worker_grid.h"
#include "kfac/distribution/memory_need.h"
#include "kfac/distribution/plan_owners.h"
#include "kfac/distribution/split_plan.h"
#include "kfac/inverse/factor_plan.h"
#include "kfac/inverse/split_columns.h"
#include "kfac/inverse/split_inverse.h"
#include "kfac/inverse/statistic_size.h"
#include "kfac/schedule/stagger.h"

namespace dkfac::kfac {
namespace {

/// columns: of the gradient that the factor is applied to.
FactorWork work_of(const LayerSpec& spec, const StatisticPlan& plan, double samples,
                   std::int64_t positions, std::int64_t columns) {
  if (plan.numel() == 0) return {};
  FactorWork work{.width = plan.shape[plan.shape.ndim() - 1],
                  .statistic = plan.numel(),
                  .build = build_flops(spec, plan, samples, positions)};
  if (!plan.factor.is_set()) return work;
  work.width = plan.factor.width();
  work.invert = inverse_flops(plan.factor);
  work.apply = apply_operations(plan.factor, columns);
  work.sent = sent_numel(plan.factor) + 2;  // Whether it is valid, and its form.
  return work;
}

SharedInversion shared_inversion(const FactorPlan& plan, int ranks) {
  if (ranks == 1) return {};
  const bool factored = plan.form == FactorForm::cholesky;
  SharedInversion shared{.part = split_part(plan, ranks)};
  for_columns(plan.dim, ranks, [&](const ColumnBlock& block) {
    shared.columns += static_cast<double>(block.numel());
    ++shared.blocks;
  });
  shared.root = split_numel(plan.dim, ranks, factored) - shared.columns;
  return shared;
}

}  // namespace

CurvatureWork curvature_work(const LayerSpec& spec, const CurvatureOptions& options, double samples,
                             std::int64_t positions, Device device) {
  const auto plan = [&](StatisticKind kind) { return plan_statistic(spec, options, kind, device); };
  if (std::holds_alternative<NormSpec>(spec))
    return {.a = {}, .g = work_of(spec, plan(StatisticKind::norm), samples, positions, 1)};
  if (!has_factors(spec)) return {};
  const StatisticPlan a = plan(StatisticKind::a), g = plan(StatisticKind::g);
  const std::int64_t rows = sharing_of(spec, options) == WeightSharing::reduce ? 1 : positions;
  return {.a = work_of(spec, a, samples, rows, g.factor.width()),
          .g = work_of(spec, g, samples, rows, a.factor.width())};
}

std::vector<LayerOwners> counted_owners(std::span<const LayerSpec> specs,
                                        const CurvatureOptions& options, int ranks, Device device) {
  CurvatureOptions counted = options;
  counted.distribution.calibrate = false;
  return plan_owners(specs, counted, {}, ranks, device);
}

std::string idle_split(std::span<const LayerOwners> owners, const CurvatureOptions& options,
                       int ranks) {
  const auto shares = [](const LayerOwners& at) { return at.ranks_a > 1 || at.ranks_g > 1; };
  if (!options.distribution.split_wide || ranks == 1 || std::ranges::any_of(owners, shares))
    return {};
  return "none is wide enough (450 columns, without diagonal blocks: block_width -1) and more work "
         "than an even share";
}

std::vector<SharedInversions> shared_inversions(std::span<const LayerSpec> specs,
                                                std::span<const LayerOwners> owners,
                                                const CurvatureOptions& options, Device device) {
  std::vector<SharedInversions> all(specs.size());
  for (std::size_t i = 0; i < specs.size(); ++i)
    if (has_factors(specs[i]))
      all[i] = {shared_inversion(plan_a(specs[i], options, device), owners[i].ranks_a),
                shared_inversion(plan_g(specs[i], options, device), owners[i].ranks_g)};
  return all;
}

std::vector<double> curvature_need(std::span<const std::string> names,
                                   std::span<const LayerSpec> specs,
                                   std::span<const LayerOwners> owners,
                                   const CurvatureOptions& options, int ranks, Device device) {
  return memory_need({.names = names,
                      .specs = specs,
                      .owners = owners,
                      .options = options,
                      .workers = comm::workers_of(options.distribution.grad_worker_fraction, ranks),
                      .ranks = ranks,
                      .device = device});
}

std::vector<int> staggered(std::span<const LayerOwners> owners, std::span<const CurvatureWork> work,
                           int interval) {
  const auto flops = [&](std::size_t i) { return work[i].a.invert + work[i].g.invert; };
  std::vector<StaggerItem> items;
  for (std::size_t i = 0; i < owners.size(); ++i)
    if (flops(i) > 0) items.push_back({owners[i].layer, flops(i)});
  const std::vector<int> chosen = stagger_offsets(items, interval);
  std::vector<int> offsets(owners.size(), 0);
  for (std::size_t i = 0, item = 0; i < owners.size(); ++i)
    if (flops(i) > 0) offsets[i] = chosen[item++];
  return offsets;
}

}  // namespace dkfac::kfac
