#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "dkfac/core/error.h"
#include "dkfac/kfac/assignment.h"

#include "core/shared/index.h"
#include "kfac/distribution/layer_work.h"

namespace dkfac::kfac {
namespace {

/// `without`: a rank that is not chosen, where there is another.
int least_loaded(std::span<const LayerLoad> ranks, bool by_bytes, int without = -1) {
  int best = without == 0 && ranks.size() > 1 ? 1 : 0;
  for (int r = best + 1; r < static_cast<int>(ranks.size()); ++r) {
    if (r == without) continue;
    const LayerLoad &a = ranks[index_of(r)], &b = ranks[index_of(best)];
    const bool less_bytes = a.bytes < b.bytes;
    if (by_bytes ? less_bytes : a.flops < b.flops || (a.flops == b.flops && less_bytes)) best = r;
  }
  return best;
}

/// The least loaded rank of the `together` ranks of which the busiest has the least work. columns:
/// the directions of each column of workers, which count with what its ranks do; or empty.
int least_of_groups(std::span<const LayerLoad> ranks, std::span<const double> columns, int together,
                    bool by_bytes, int without = -1) {
  if (together == 1) return least_loaded(ranks, by_bytes, without);
  const auto group = [&](int first) { return ranks.subspan(index_of(first), index_of(together)); };
  std::vector<LayerLoad> busiest;
  for (int first = 0; first + together <= std::ssize(ranks); first += together)
    busiest.push_back(*std::ranges::max_element(group(first), {}, &LayerLoad::flops));
  const int first = together * least_loaded(busiest, false);
  std::vector<LayerLoad> members(group(first).begin(), group(first).end());
  for (int r = 0; r < together && !columns.empty(); ++r)
    members[index_of(r)].flops += columns[index_of(first + r) % columns.size()];
  return first + least_loaded(members, by_bytes, without - first);
}

/// The layers in the order in which they are assigned.
std::vector<int> longest_first(std::span<const LayerLoad> loads) {
  std::vector<int> order(loads.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int i, int j) {
    const LayerLoad &a = loads[index_of(i)], &b = loads[index_of(j)];
    if (a.flops != b.flops) return a.flops > b.flops;
    return a.flops == 0 && a.bytes > b.bytes;
  });
  return order;
}

/// A way to divide a layer between ranks, and the work of each.
struct Placement {
  LayerOwners owners;
  std::vector<std::pair<int, double>> work = {};

  Placement(const FactorLoads& load, int layer, int a, int g) : owners(layer, a, g) {
    owners.ranks_a = load.ranks_a;
    owners.ranks_g = load.ranks_g;
    for_work(load, owners, [this](int rank, double flops) { add(rank, flops); });
    for (const auto& [from, flops] : {std::pair(a, load.send_a), {g, load.send_g}}) {
      if (from == layer) continue;
      add(from, flops);
      add(layer, flops);
    }
  }
  void add(int rank, double flops) {
    const auto found = std::ranges::find(work, rank, &std::pair<int, double>::first);
    if (found == work.end())
      work.emplace_back(rank, flops);
    else
      found->second += flops;
  }
};

/// Whole on the rank with the least work; the narrower factor on the next; the wider factor alone.
/// The last two only where they are different ranks and there are two factors.
std::vector<Placement> placements(const FactorLoads& load, std::span<const LayerLoad> ranks,
                                  std::span<const double> columns, bool apart) {
  const bool by_bytes = load.whole() == 0, wide_a = load.a >= load.g;
  const int least = least_of_groups(ranks, columns, std::max(load.ranks_a, load.ranks_g), by_bytes);
  std::vector<Placement> out{{load, least, least, least}};
  if (!apart || !(load.a > 0 && load.g > 0)) return out;
  std::vector<LayerLoad> busy(ranks.begin(), ranks.end());  // With the wider factor.
  for_group(least, wide_a ? load.ranks_a : load.ranks_g,
            [&](int r) { busy[index_of(r)].flops += std::max(load.a, load.g); });
  const int next =
      least_of_groups(busy, columns, wide_a ? load.ranks_g : load.ranks_a, by_bytes, least);
  if (next == least) return out;
  for (const int owner : {least, next})
    out.emplace_back(load, owner, wide_a ? least : next, wide_a ? next : least);
  return out;
}

/// The work of the busiest of its ranks after a placement.
double busiest(const Placement& p, std::span<const LayerLoad> ranks) {
  double most = 0;
  for (const auto& [rank, flops] : p.work)
    most = std::max(most, ranks[index_of(rank)].flops + flops);
  return most;
}

/// What no plan can do better than: the mean of all ranks, or the largest factor. Evening out the
/// last 2 % is not worth a message.
double aimed_at(std::span<const FactorLoads> loads, int world_size) {
  constexpr double kEven = 1.02;
  double sum = 0, largest = 0;
  for (const FactorLoads& load : loads) {
    sum += load.apply + load.ranks_a * load.a + load.ranks_g * load.g;
    largest = std::max({largest, load.a, load.g});
  }
  return kEven * std::max(sum / world_size, largest);
}

void check_world(const char* call, int world_size) {
  DKFAC_CHECK(world_size >= 1, "[", call, "] world_size is ", world_size, "; it must be >= 1");
}

}  // namespace

std::vector<int> assign(std::span<const LayerLoad> loads, int world_size) {
  check_world("assign", world_size);
  std::vector<LayerLoad> ranks(index_of(world_size));
  std::vector<int> owners(loads.size(), 0);
  for (const int i : longest_first(loads)) {
    const LayerLoad& load = loads[index_of(i)];
    const int owner = least_loaded(ranks, load.flops == 0);
    owners[index_of(i)] = owner;
    ranks[index_of(owner)].flops += load.flops;
    ranks[index_of(owner)].bytes += load.bytes;
  }
  return owners;
}

std::vector<LayerOwners> assign_factors(std::span<const FactorLoads> loads, int world_size,
                                        bool apart, int workers) {
  check_world("assign_factors", world_size);
  DKFAC_CHECK(workers >= 1 && world_size % workers == 0, "[assign_factors] workers is ", workers,
              "; it must divide world_size, ", world_size);
  std::vector<LayerLoad> whole, ranks(index_of(world_size));
  std::vector<double> columns(workers > 1 ? index_of(world_size / workers) : 0);
  for (const FactorLoads& load : loads) whole.push_back({load.whole(), load.bytes});
  const double bound = aimed_at(loads, world_size);
  std::vector<LayerOwners> owners(loads.size());
  for (const int i : longest_first(whole)) {
    const FactorLoads& load = loads[index_of(i)];
    const std::vector<Placement> possible = placements(load, ranks, columns, apart);
    auto chosen = std::ranges::find_if(
        possible, [&](const Placement& p) { return busiest(p, ranks) <= bound; });
    if (chosen == possible.end())
      chosen = std::ranges::min_element(possible, {},
                                        [&](const Placement& p) { return busiest(p, ranks); });
    for (const auto& [rank, flops] : chosen->work) ranks[index_of(rank)].flops += flops;
    ranks[index_of(chosen->owners.layer)].bytes += load.bytes;
    owners[index_of(i)] = chosen->owners;
    if (workers > 1) columns[index_of(chosen->owners.layer) % columns.size()] += load.apply;
  }
  return owners;
}

}  // namespace dkfac::kfac
