#include <algorithm>
#include <numeric>

#include "dkfac/core/error.h"
#include "dkfac/kfac/assignment.h"

#include "core/shared/index.h"

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

/// A way to divide a layer between two ranks.
struct Placement {
  LayerOwners owners;
  int ranks[2];
  double flops[2];
};

/// Whole on `least`; the narrower factor on `next`; the wider factor alone on `least`. The last two
/// only where they are different ranks and there are two factors.
std::vector<Placement> placements(const FactorLoads& load, int least, int next) {
  std::vector<Placement> out{{{least}, {least, least}, {load.whole(), 0}}};
  if (least == next || !(load.a > 0 && load.g > 0)) return out;
  const bool wide_a = load.a >= load.g;
  const double wide = std::max(load.a, load.g), narrow = std::min(load.a, load.g),
               send_wide = wide_a ? load.send_a : load.send_g,
               send_narrow = wide_a ? load.send_g : load.send_a;
  const auto owners = [&](int layer) {
    return wide_a ? LayerOwners{layer, least, next} : LayerOwners{layer, next, least};
  };
  out.push_back(
      {owners(least), {least, next}, {wide + load.apply + send_narrow, narrow + send_narrow}});
  out.push_back({owners(next), {least, next}, {wide + send_wide, narrow + load.apply + send_wide}});
  return out;
}

/// The work of the busier of the two ranks after a placement.
double busier(const Placement& p, std::span<const LayerLoad> ranks) {
  return std::max(ranks[index_of(p.ranks[0])].flops + p.flops[0],
                  ranks[index_of(p.ranks[1])].flops + p.flops[1]);
}

/// What no plan can do better than: the mean of all ranks, or the largest factor. Evening out the
/// last 2 % is not worth a message.
double aimed_at(std::span<const FactorLoads> loads, int world_size) {
  constexpr double kEven = 1.02;
  double sum = 0, largest = 0;
  for (const FactorLoads& load : loads) {
    sum += load.whole();
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

std::vector<LayerOwners> assign_factors(std::span<const FactorLoads> loads, int world_size) {
  check_world("assign_factors", world_size);
  std::vector<LayerLoad> whole, ranks(index_of(world_size));
  for (const FactorLoads& load : loads) whole.push_back({load.whole(), load.bytes});
  const double bound = aimed_at(loads, world_size);
  std::vector<LayerOwners> owners(loads.size());
  for (const int i : longest_first(whole)) {
    const FactorLoads& load = loads[index_of(i)];
    const int least = least_loaded(ranks, load.whole() == 0),
              next = least_loaded(ranks, load.whole() == 0, least);
    const std::vector<Placement> possible = placements(load, least, next);
    auto chosen = std::ranges::find_if(
        possible, [&](const Placement& p) { return busier(p, ranks) <= bound; });
    if (chosen == possible.end())
      chosen = std::ranges::min_element(possible, {},
                                        [&](const Placement& p) { return busier(p, ranks); });
    for (int side = 0; side < 2; ++side)
      ranks[index_of(chosen->ranks[side])].flops += chosen->flops[side];
    ranks[index_of(chosen->owners.layer)].bytes += load.bytes;
    owners[index_of(i)] = chosen->owners;
  }
  return owners;
}

}  // namespace dkfac::kfac
