#include "kfac/curvature/layer_table.h"

#include <utility>

#include "kfac/distribution/cost_model.h"

namespace dkfac::kfac {

LayerTable::LayerTable(Context& context, std::shared_ptr<comm::Communicator> communicator,
                       CurvatureOptions curvature_options)
    : ctx(context),
      comm(std::move(communicator)),
      options(std::move(curvature_options)),
      meter(make_step_meter(context.device().is_cuda())) {}

int LayerTable::checked(LayerId id, const char* operation) const {
  const int index = static_cast<int>(id);
  DKFAC_CHECK(index >= 0 && index < layers(), "[", operation, "] layer id ", index,
              " does not exist; add_layer() returned 0 to ", layers() - 1);
  return index;
}

LayerShare LayerTable::share_of(int index) const {
  const LayerOwners& owners = layer(index).owners;
  return {.works = is_worker_of(index),
          .owns = owns(index),
          .a = owners.a == comm->rank(),
          .g = owners.g == comm->rank()};
}

int LayerTable::holder(const Statistic& s) const {
  const int owner = layer(s.layer).owners.layer;
  return grid.column_of(s.owner) == grid.column_of(owner) ? s.owner : owner;
}

bool LayerTable::scales_due(int index) const {
  const CurvatureBlock& block = layer(index);
  return block.scales_numel() > 0 && due(block.g) && block.has_inverse();
}

void plan_statistics(LayerTable& table) {
  const CurvatureOptions& options = table.options;
  std::vector<RefreshEntry> entries;
  for (int i = 0; i < table.layers(); ++i) {
    CurvatureBlock& block = table.layer(i);
    for (const StatisticTraits& traits : block.statistics()) {
      (traits.kind == StatisticKind::a ? block.a : block.g) = table.ids();
      Statistic s{.name = block.name + traits.suffix,
                  .traits = traits,
                  .layer = i,
                  .owner = block.averager(traits.kind),
                  .ranks = block.together(traits.kind),
                  .plan = plan_statistic(block.spec, options, traits.kind, table.ctx.device())};
      if (s.owner == table.comm->rank() && options.refresh.staleness == Staleness::adaptive)
        s.history = StatisticHistory(table.ctx, s.plan.shape, options.dtype);
      entries.push_back({.inverted = s.plan.factor.is_set(),
                         .layer = i,
                         .owner = block.owners.layer,
                         .inverse_flops = inverse_flops(s.plan.factor),
                         .intervals = {},
                         .damped = !s.plan.factor.has_values()});
      table.statistics.push_back(std::move(s));
    }
    if (block.a == kNoStatistic || block.g == kNoStatistic) continue;
    table.statistic(block.a).partner = block.g;
    table.statistic(block.g).partner = block.a;
  }
  table.schedule = RefreshSchedule(std::move(entries));
  table.schedule.configure(options);
}

}  // namespace dkfac::kfac
