#include "app/plan/forecast.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>

#include "core/shared/index.h"

namespace dkfac::app::planning {

namespace {

/// A kind of step and the part of the steps that are of it.
struct Kind {
  double weight = 1, statistics = 0;
  Rebuild rebuild{};
};

constexpr int kLongestCycle = 10000;

/// Those that recommend() tries.
constexpr int kIntervals[] = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000};
constexpr int kStatisticsPerInverse = 5;

std::vector<Kind> kinds_of(const Strategy& strategy) {
  if (strategy.type != optim::OptimizerType::kfac) return {{}};
  const kfac::RefreshOptions& refresh = strategy.curvature.refresh;
  const int s = refresh.statistics_interval, i = refresh.inverse_interval;
  const int cycle = std::min(std::lcm(s, i), kLongestCycle);
  std::map<std::pair<bool, int>, int> count;  // By statistics and offset; -1: all, -2: none.
  for (int k = 0; k < cycle; ++k)
    ++count[{k % s == 0, refresh.stagger_inverses ? k % i : k % i == 0 ? -1 : -2}];
  std::vector<Kind> kinds;
  for (const auto& [key, steps] : count)
    kinds.push_back({.weight = static_cast<double>(steps) / cycle,
                     .statistics = key.first ? 1.0 : 0.0,
                     .rebuild = {key.second > -2, std::max(key.second, -1)}});
  return kinds;
}

double memory_of(const Network& network, const Ownership& o, const Strategy& strategy,
                 const Cluster& cluster, int states) {
  const auto element = static_cast<double>(size_of(o.options.dtype));
  const double parameters = network.parameters();
  const double updated = updated_elements(network, o, cluster.ranks);
  double bytes = network.pass_bytes + element * (parameters + states * updated);
  if (o.owned && o.columns > 1) bytes += element * parameters;  // Of the all-gather.
  if (strategy.type != optim::OptimizerType::kfac) return bytes;
  const std::vector<double> need =
      kfac::curvature_need(network.names, network.specs, o.owners, o.options, cluster.ranks,
                           cluster.processor.overlaps ? Device::cuda() : Device::cpu());
  return bytes + *std::ranges::max_element(need);
}

std::string resource_of(Phase phase, const Transfer& sent, const Cluster& cluster) {
  switch (phase) {
    case Phase::forward:
    case Phase::backward:
      return "passes";
    case Phase::statistics:
      return "statistics";
    case Phase::inverses:
      return "inverses of one rank";
    case Phase::precondition:
      return "directions of one rank";
    case Phase::update:
      return "memory";
    case Phase::reduce:
    case Phase::gather:
      break;
  }
  if (sent.inner + sent.outer <= 0) return "memory";  // Copies of one rank.
  const double inner = sent.inner / cluster.inner.bytes_per_s,
               outer = sent.outer / cluster.outer.bytes_per_s;
  if (sent.latency > std::max(inner, outer)) return "latency";
  return outer > inner ? "links between nodes" : "links within nodes";
}

/// The resource of the phase that has most of these seconds; forward and backward, and reduce and
/// gather, count as one.
std::string largest(std::array<double, kPhases> phases, const Transfer& sent,
                    const Cluster& cluster) {
  const auto join = [&](Phase from, Phase to) {
    phases.at(static_cast<std::size_t>(to)) +=
        std::exchange(phases.at(static_cast<std::size_t>(from)), 0);
  };
  join(Phase::forward, Phase::backward);
  join(Phase::gather, Phase::reduce);
  const auto most = std::ranges::max_element(phases);
  return resource_of(static_cast<Phase>(most - phases.begin()), sent, cluster);
}

}  // namespace

Forecast forecast(const Network& network, const Cluster& cluster, const Strategy& strategy,
                  int micro_batches) {
  const Processor& p = cluster.processor;
  const Ownership o = ownership_of(network, strategy, cluster.ranks, p.overlaps);
  optim::OptimizerOptions all;
  const int states = optim::states_of(strategy.type, all);
  const bool adaptive = strategy.type == optim::OptimizerType::kfac &&
                        strategy.curvature.refresh.staleness == kfac::Staleness::adaptive;
  Forecast out{.name = strategy.name, .balance = balance(o, cluster.ranks)};
  for (const Kind& kind : adaptive ? std::vector<Kind>{{}} : kinds_of(strategy)) {
    Step step{.network = network,
              .cluster = cluster,
              .ownership = o,
              .states = states,
              .kfac = strategy.type == optim::OptimizerType::kfac,
              .statistics = kind.statistics,
              .micro_batches = micro_batches};
    step.rebuild = rebuild_work(o, cluster, kind.rebuild);
    step.rebuilt = kind.rebuild.any && kind.rebuild.offset < 0 ? 1.0
                   : kind.rebuild.any ? 1.0 / strategy.curvature.refresh.inverse_interval
                                      : 0.0;
    if (adaptive) {
      step.statistics = step.rebuilt = strategy.refreshed;
      step.rebuild = adaptive_rebuild_work(o, cluster, strategy.refreshed);
    }
    const StepTasks made = tasks_of(step);
    const Timeline line = simulate(made.tasks);
    out.seconds += kind.weight * line.seconds;
    out.slowest = std::max(out.slowest, line.seconds);
    out.links += kind.weight * made.links;
    for (std::size_t i = 0; i < kPhases; ++i) out.phases.at(i) += kind.weight * line.phases.at(i);
    out.sent += {kind.weight * made.sent.inner, kind.weight * made.sent.outer,
                 kind.weight * made.sent.latency};
  }
  out.memory = memory_of(network, o, strategy, cluster, states);
  out.binds = largest(out.phases, out.sent, cluster);
  return out;
}

std::vector<Forecast> forecasts(const Network& network, const Cluster& cluster,
                                const std::vector<Strategy>& strategies, int micro_batches) {
  std::vector<Forecast> all;
  for (const Strategy& strategy : strategies)
    all.push_back(forecast(network, cluster, strategy, micro_batches));
  const auto sgd = std::ranges::find(all, "sgd", &Forecast::name);
  if (sgd == all.end()) return all;
  const Forecast base = *sgd;
  for (Forecast& one : all) {
    one.to_sgd = one.seconds / base.seconds;
    if (one.seconds <= base.seconds) continue;
    std::array<double, kPhases> added{};
    for (std::size_t i = 0; i < kPhases; ++i)
      added.at(i) = std::max(0.0, one.phases.at(i) - base.phases.at(i));
    one.adds = largest(added, one.sent, cluster);
  }
  return all;
}

std::optional<Advice> recommend(const Network& network, const Cluster& cluster,
                                const kfac::CurvatureOptions& base, double budget,
                                int micro_batches) {
  std::optional<Advice> too_large;
  for (const int inverses : kIntervals) {
    const Intervals intervals{std::max(1, inverses / kStatisticsPerInverse), inverses};
    std::vector<Strategy> all = strategies(base, intervals, cluster.ranks, cluster.per_node);
    std::ranges::move(distributions(base, intervals, cluster.ranks), std::back_inserter(all));
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
