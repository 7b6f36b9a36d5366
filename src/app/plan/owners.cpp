#include "app/plan/owners.h"

#include <algorithm>
#include <functional>

#include "comm/collective/worker_grid.h"
#include "core/shared/index.h"
#include "optim/shared/muon_work.h"

namespace dkfac::app::planning {

namespace {

/// Seconds of an inversion that is not one of many.
double seconds_of_one(double flops, const Processor& p) {
  return flops / (p.cholesky_one * p.products32);
}

/// Inversions of one rank.
struct Inversions {
  double sum = 0, longest = 0;  ///< Operations of those that it does alone.
  RebuildWork together;         ///< Of those with other ranks, one after the other.
  [[nodiscard]] double seconds(const Processor& p) const {
    return std::max(sum / (p.cholesky * p.products32), seconds_of_one(longest, p));
  }
  [[nodiscard]] RebuildWork work(const Processor& p) const {
    return {seconds(p) + together.seconds, together.exchange};
  }
};

double seconds_of(const RebuildWork& work, const Cluster& c) {
  return work.seconds + seconds(work.exchange, c);
}
void add(RebuildWork& to, const RebuildWork& work, double weight) {
  to.seconds += weight * work.seconds;
  const Transfer& t = work.exchange;
  to.exchange += {weight * t.inner, weight * t.outer, weight * t.latency};
}

/// What each of `ranks` consecutive ranks does to invert a factor.
RebuildWork shared_work(double flops, const kfac::SharedInversion& shared, int ranks,
                        double element, const Cluster& c) {
  RebuildWork work{.seconds = seconds_of_one(shared.part * flops, c.processor)};
  if (ranks == 1) return work;
  Cluster group = c;
  group.ranks = ranks;
  group.per_node = std::min(c.per_node, ranks);
  const double bytes = element * shared.columns;
  work.exchange = to_owners(bytes, bytes, group);
  work.exchange.latency *= static_cast<double>(shared.blocks);
  work.exchange += message(element * shared.root, group);
  return work;
}

/// A factor that is rebuilt.
struct DueFactor {
  double flops = 0;
  int owner = 0, ranks = 1;
  RebuildWork work;
};
std::vector<DueFactor> due_factors(const Ownership& o, const Cluster& c, Rebuild due) {
  const auto element = static_cast<double>(size_of(o.options.dtype));
  std::vector<DueFactor> all;
  const auto add = [&](const kfac::FactorWork& work, int owner, int ranks,
                       const kfac::SharedInversion& shared) {
    all.push_back({work.invert, owner, ranks, shared_work(work.invert, shared, ranks, element, c)});
  };
  for (std::size_t i = 0; i < o.work.size(); ++i) {
    if (due.offset >= 0 && o.offsets[i] != due.offset) continue;
    const kfac::LayerOwners& at = o.owners[i];
    add(o.work[i].a, at.a, at.ranks_a, o.shared[i].a);
    add(o.work[i].g, at.g, at.ranks_g, o.shared[i].g);
  }
  return all;
}

std::vector<Inversions> inversions_of(const std::vector<DueFactor>& factors, int ranks) {
  std::vector<Inversions> all(index_of(ranks));
  for (const DueFactor& factor : factors) {
    kfac::for_group(factor.owner, factor.ranks, [&](int r) {
      Inversions& rank = all[index_of(r)];
      if (factor.ranks > 1) return add(rank.together, factor.work, 1);
      rank.sum += factor.flops;
      rank.longest = std::max(rank.longest, factor.flops);
    });
  }
  return all;
}

std::vector<kfac::LayerLoad> muon_loads(const Network& network, DType dtype) {
  std::vector<kfac::LayerLoad> loads;
  for (const LayerSpec& spec : network.specs) {
    const std::int64_t rows = output_rows(spec);
    const std::int64_t numel = weight_numel(spec) + bias_numel(spec);
    loads.push_back({rows > 0 ? optim::newton_schulz_flops(rows, weight_numel(spec) / rows) : 0,
                     numel * static_cast<std::int64_t>(size_of(dtype))});
  }
  return loads;
}

void own_muon(const Network& network, int ranks, Ownership& o) {
  const std::vector<kfac::LayerLoad> loads = muon_loads(network, o.options.dtype);
  for (const int owner : kfac::assign(loads, ranks)) o.owners.emplace_back(owner);
  for (const kfac::LayerLoad& load : loads) o.direction.push_back(load.flops);
}

void own_kfac(const Network& network, int ranks, Device device, Ownership& o) {
  o.owners = kfac::counted_owners(network.specs, o.options, ranks, device);
  o.shared = kfac::shared_inversions(network.specs, o.owners, o.options, device);
  for (const kfac::CurvatureWork& work : o.work) o.direction.push_back(work.a.apply + work.g.apply);
  o.workers = comm::workers_of(o.options.distribution.grad_worker_fraction, ranks);
  if (o.options.refresh.stagger_inverses)
    o.offsets = kfac::staggered(o.owners, o.work, o.options.refresh.inverse_interval);
}

/// Positions of each layer with parameters.
std::vector<std::int64_t> positions_of(const Network& network) {
  std::vector<std::int64_t> positions(network.specs.size(), 1);
  for (const PassLayer& layer : network.layers)
    if (layer.spec >= 0) positions[index_of(layer.spec)] = layer.positions;
  return positions;
}

/// The largest sum of `values` of the layers of a column, or of a rank.
double busiest(const Ownership& o, std::span<const double> values) {
  std::vector<double> sums(index_of(o.columns));
  for (std::size_t i = 0; i < values.size(); ++i)
    sums[index_of(o.owners[i].layer % o.columns)] += values[i];
  return *std::ranges::max_element(sums);
}

}  // namespace

Ownership ownership_of(const Network& network, const Strategy& strategy, int ranks, bool device) {
  const Device where = device ? Device::cuda() : Device::cpu();
  Ownership o{.options = kfac::with_block_width(strategy.curvature, network.specs)};
  o.owned =
      strategy.type == optim::OptimizerType::kfac || strategy.type == optim::OptimizerType::muon;
  const auto positions = positions_of(network);
  for (std::size_t i = 0; i < network.specs.size(); ++i)
    o.work.push_back(strategy.type == optim::OptimizerType::kfac
                         ? kfac::curvature_work(
                               network.specs[i], o.options,
                               static_cast<double>(network.batch) * o.options.statistics.fraction,
                               positions[i], where)
                         : kfac::CurvatureWork{});
  if (strategy.type == optim::OptimizerType::kfac) own_kfac(network, ranks, where, o);
  if (strategy.type == optim::OptimizerType::muon) own_muon(network, ranks, o);
  if (!o.owned) o.owners.assign(network.specs.size(), kfac::LayerOwners(0));
  o.columns = o.owned ? ranks / o.workers : 1;
  return o;
}

RebuildWork rebuild_work(const Ownership& o, const Cluster& c, Rebuild due) {
  RebuildWork most;
  if (!due.any) return most;
  for (const Inversions& one : inversions_of(due_factors(o, c, due), c.ranks))
    most = std::ranges::max(most, one.work(c.processor), {},
                            [&](const RebuildWork& work) { return seconds_of(work, c); });
  return most;
}

RebuildWork adaptive_rebuild_work(const Ownership& o, const Cluster& c, double refreshed) {
  // The longest of the factors that are due, each with probability `refreshed`; not less than the
  // busiest rank's mean.
  const auto length = [&](const RebuildWork& work) { return seconds_of(work, c); };
  std::vector<DueFactor> factors = due_factors(o, c, {.any = true});
  RebuildWork mean, longest;
  for (const Inversions& one : inversions_of(factors, c.ranks)) {
    RebuildWork work;
    add(work, one.work(c.processor), refreshed);
    mean = std::ranges::max(mean, work, {}, length);
  }
  std::ranges::sort(factors, std::ranges::greater{},
                    [&](const DueFactor& factor) { return length(factor.work); });
  double none = 1;
  for (const DueFactor& factor : factors) {
    add(longest, factor.work, refreshed * none);
    none *= 1 - refreshed;
  }
  return std::ranges::max(longest, mean, {}, length);
}

double direction_seconds(const Ownership& o, const Processor& p) {
  if (o.direction.empty()) return 0;
  const double rate = o.options.precondition_tf32 ? p.products_tf32 : p.products32;
  std::vector<double> seconds;
  for (const double flops : o.direction)
    seconds.push_back(flops > 0 ? flops / rate + 2 * p.gap : 0);
  return busiest(o, seconds);
}

double updated_elements(const Network& network, const Ownership& o, int ranks) {
  if (!o.owned || ranks == 1) return network.parameters();
  std::vector<double> elements;
  for (const LayerSpec& spec : network.specs)
    elements.push_back(static_cast<double>(weight_numel(spec) + bias_numel(spec)));
  return busiest(o, elements);
}

double balance(const Ownership& o, int ranks) {
  if (o.direction.empty()) return 1;
  std::vector<double> ranks_work(index_of(ranks));
  double sum = 0;
  const auto invert = [&](double flops, double part, int owner, int together) {
    sum += flops;
    kfac::for_group(owner, together, [&](int r) { ranks_work[index_of(r)] += part * flops; });
  };
  for (std::size_t i = 0; i < o.work.size(); ++i) {
    const kfac::LayerOwners& at = o.owners[i];
    const kfac::SharedInversions shared = o.shared.empty() ? kfac::SharedInversions{} : o.shared[i];
    ranks_work[index_of(at.layer)] += o.direction[i];
    sum += o.direction[i];
    invert(o.work[i].a.invert, shared.a.part, at.a, at.ranks_a);
    invert(o.work[i].g.invert, shared.g.part, at.g, at.ranks_g);
  }
  return sum > 0 ? *std::ranges::max_element(ranks_work) * ranks / sum : 1;
}

}  // namespace dkfac::app::planning
