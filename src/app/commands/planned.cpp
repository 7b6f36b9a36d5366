#include "app/commands/planned.h"

#include <algorithm>

#include "dkfac/core/error.h"

#include "app/plan/forecast.h"

namespace dkfac::app {

namespace {

constexpr int kFirstStatistics = 10, kFirstInverses = 50;  ///< Of a budget.

/// An H100 that is as much slower or faster as its passes are.
planning::Processor scaled_to(double flops, const planning::Network& network) {
  planning::Processor p = planning::processor_of("h100");
  double seconds = 0;
  for (const planning::LayerSeconds& layer : planning::pass_seconds(network, p))
    seconds += layer.forward + layer.parameters + layer.input;
  const double factor =
      flops * seconds / (network.training_flops * static_cast<double>(network.batch));
  for (double* rate : {&p.products16, &p.products32, &p.products_tf32, &p.copy}) *rate *= factor;
  p.gap /= factor;
  p.passes = flops;
  return p;
}

std::shared_ptr<const data::DataSplits> data_or_stand_in(const Config& config, DataCache& cache,
                                                         bool& missing) {
  try {
    return cache.get(config);
  } catch (const MissingInput&) {
    if (config.data.name != "image-folder") throw;
    missing = true;
  }
  Config stand_in = config;
  stand_in.data.name = "synthetic-photos";
  stand_in.data.hold_out = 0;
  stand_in.data.synthetic_train = 1281167;
  stand_in.data.synthetic_test = 50000;
  stand_in.data.synthetic_classes = 1000;
  return cache.get(stand_in);
}

}  // namespace

bool is_model(const std::string& topic) {
  const auto models = nn::model_names();
  return std::ranges::find(models, topic) != models.end();
}

PhaseData planned_data(const Config& config, DataCache& cache, bool& missing) {
  PhaseData sets;
  for (const Phase& phase : phases_of(config))
    sets.push_back(data_or_stand_in(phase.config, cache, missing));
  return sets;
}

planning::Network network_of(const PhasePlan& phase, int ranks) {
  const TrainConfig& train = phase.phase.config.train;
  nn::ModelOptions options = model_options(phase.phase.config, phase.data->train, ranks);
  options.input = image_of(phase);
  return planning::network_of(
      options, train.global_batch,
      std::max<std::int64_t>(1, train.global_batch / (ranks * train.micro_batches)));
}

planning::Strategy strategy_of(const Config& config) {
  planning::Strategy s{.name = std::string(name_of(config.optimizer.type)),
                       .type = config.optimizer.type,
                       .curvature = optimizer_options(config).kfac.curvature};
  kfac::RefreshOptions& refresh = s.curvature.refresh;
  if (refresh.statistics_interval == 0) refresh.statistics_interval = kFirstStatistics;
  if (refresh.inverse_interval == 0) refresh.inverse_interval = kFirstInverses;
  return s;
}

double step_seconds(const PhasePlan& phase, int ranks, double flops) {
  const planning::Network network = network_of(phase, ranks);
  planning::Cluster cluster{.processor = scaled_to(flops / ranks, network), .ranks = ranks};
  cluster.per_node = cluster.processor.per_node;
  cluster.inner = cluster.processor.inner;
  cluster.outer = cluster.processor.outer;
  return planning::forecast(network, cluster, strategy_of(phase.phase.config),
                            static_cast<int>(phase.phase.config.train.micro_batches))
      .seconds;
}

}  // namespace dkfac::app
