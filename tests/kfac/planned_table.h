#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/context.h"

#include "kfac/curvature/layer_table.h"
#include "support/natural_gradient.h"

namespace dkfac::testing {

/// One linear layer of one weight, in f64 and without a bias.
inline const LinearSpec kOneWeight{.in = 1, .out = 1, .bias = false};

inline kfac::CurvatureOptions options_f64() {
  kfac::CurvatureOptions options = natural_gradient();
  options.dtype = DType::f64;
  options.loss_reduction = LossReduction::sum;
  return options;
}

/// A LayerTable as Curvature::prepare() leaves it; layer i is owned by rank i % ranks.
class PlannedTable {
 public:
  using Layers = std::vector<std::pair<std::string, LayerSpec>>;
  explicit PlannedTable(const Layers& layers, kfac::CurvatureOptions options = options_f64(),
                        std::shared_ptr<comm::Communicator> comm = comm::make_self())
      : table(ctx, comm, std::move(options)) {
    table.grid = comm::make_worker_grid(comm, table.options.distribution.grad_worker_fraction);
    for (const auto& [name, spec] : layers) {
      table.blocks.push_back(kfac::make_block(name, spec));
      const int index = table.layers() - 1;
      table.layer(index).owners = index % comm->size();
      if (table.is_worker_of(index))
        table.layer(index).allocate(ctx, table.options, table.share_of(index));
    }
    kfac::plan_statistics(table);
  }
  /// Ends an accepted step in which the layers got their records.
  void end_step() {
    table.schedule.advance(std::vector<kfac::RefreshDecision>(table.statistics.size()));
    for (kfac::Statistic& s : table.statistics) s.forget_records();
  }

  Context ctx;
  kfac::LayerTable table;
};

}  // namespace dkfac::testing
