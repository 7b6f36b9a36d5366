#include "app/plan/recommend.h"

#include <algorithm>

namespace dkfac::app::planning {

namespace {

constexpr int kIntervals[] = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000};
constexpr int kStatisticsPerInverse = 5;

}  // namespace

std::optional<Advice> recommend(const Network& network, const Cluster& cluster,
                                const kfac::CurvatureOptions& base, double budget,
                                int micro_batches) {
  std::optional<Advice> too_large;
  for (const int inverses : kIntervals) {
    const Intervals intervals{std::max(1, inverses / kStatisticsPerInverse), inverses};
    const std::vector<Strategy> all = strategies(base, intervals, cluster.ranks, cluster.per_node);
    const std::vector<Forecast> costs = forecasts(network, cluster, all, micro_batches);
    std::optional<Advice> best;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const kfac::RefreshOptions& refresh = all[i].curvature.refresh;
      // Low rank needs statistics of one step, and local ones are of fewer samples, which are other
      // optimizers.
      if (all[i].type != optim::OptimizerType::kfac || refresh.inverse_interval != inverses ||
          refresh.staleness == kfac::Staleness::adaptive ||
          all[i].curvature.statistics.new_weight != base.statistics.new_weight ||
          all[i].curvature.distribution.local_statistics != base.distribution.local_statistics)
        continue;
      if (costs[i].to_sgd > 1 + budget) continue;
      const Advice one{.strategy = all[i],
                       .intervals = intervals,
                       .forecast = costs[i],
                       .fits = fits(costs[i], cluster.processor)};
      if (!one.fits && !too_large) too_large = one;
      if (one.fits && (!best || one.forecast.seconds < best->forecast.seconds)) best = one;
    }
    if (best) return best;
  }
  return too_large;
}

}  // namespace dkfac::app::planning
