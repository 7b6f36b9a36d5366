#include "app/plan/owners.h"

#include <algorithm>
#include <numeric>

#include "comm/collective/worker_grid.h"
#include "core/shared/index.h"
#include "optim/shared/muon_work.h"

namespace dkfac::app::planning {

namespace {

/// Inversions of one rank: their sum, and the longest.
struct Inversions {
  double sum = 0, longest = 0;
  void add(double flops) {
    sum += flops;
    longest = std::max(longest, flops);
  }
};

double seconds_of(const Inversions& i, const Processor& p) {
  return std::max(i.sum / (p.cholesky * p.products32), i.longest / (p.cholesky_one * p.products32));
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

double rebuild_seconds(const Ownership& o, int ranks, const Processor& p, Rebuild due) {
  if (!due.any) return 0;
  std::vector<Inversions> all(index_of(ranks));
  for (std::size_t i = 0; i < o.work.size(); ++i) {
    if (due.offset >= 0 && o.offsets[i] != due.offset) continue;
    all[index_of(o.owners[i].a)].add(o.work[i].a.invert);
    all[index_of(o.owners[i].g)].add(o.work[i].g.invert);
  }
  double most = 0;
  for (const Inversions& one : all) most = std::max(most, seconds_of(one, p));
  return most;
}

double adaptive_rebuild_seconds(const Ownership& o, int ranks, const Processor& p,
                                double refreshed) {
  // The longest of the factors that are due, each with probability `refreshed`; not less than the
  // busiest rank's mean.
  std::vector<double> factors;
  for (const kfac::CurvatureWork& work : o.work)
    for (const double flops : {work.a.invert, work.g.invert})
      factors.push_back(flops / (p.cholesky_one * p.products32));
  std::ranges::sort(factors, std::greater<>());
  double longest = 0, none = 1;
  for (const double seconds : factors) {
    longest += seconds * refreshed * none;
    none *= 1 - refreshed;
  }
  std::vector<Inversions> all(index_of(ranks));
  for (std::size_t i = 0; i < o.work.size(); ++i) {
    all[index_of(o.owners[i].a)].sum += o.work[i].a.invert;
    all[index_of(o.owners[i].g)].sum += o.work[i].g.invert;
  }
  double mean = 0;
  for (const Inversions& one : all) mean = std::max(mean, refreshed * seconds_of(one, p));
  return std::max(longest, mean);
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
  for (std::size_t i = 0; i < o.work.size(); ++i) {
    ranks_work[index_of(o.owners[i].layer)] += o.direction[i];
    ranks_work[index_of(o.owners[i].a)] += o.work[i].a.invert;
    ranks_work[index_of(o.owners[i].g)] += o.work[i].g.invert;
  }
  const double sum = std::accumulate(ranks_work.begin(), ranks_work.end(), 0.0);
  return sum > 0 ? *std::ranges::max_element(ranks_work) * ranks / sum : 1;
}

}  // namespace dkfac::app::planning
