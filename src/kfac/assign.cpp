#include <algorithm>
#include <numeric>

#include "dkfac/core/error.h"
#include "dkfac/kfac/assignment.h"

#include "core/shared/index.h"

namespace dkfac::kfac {
namespace {

int least_loaded(std::span<const LayerLoad> ranks, bool by_bytes) {
  int best = 0;
  for (int r = 1; r < static_cast<int>(ranks.size()); ++r) {
    const LayerLoad &a = ranks[index_of(r)], &b = ranks[index_of(best)];
    const bool less_bytes = a.bytes < b.bytes;
    if (by_bytes ? less_bytes : a.flops < b.flops || (a.flops == b.flops && less_bytes)) best = r;
  }
  return best;
}

}  // namespace

std::vector<int> assign(std::span<const LayerLoad> loads, int world_size) {
  DKFAC_CHECK(world_size >= 1, "[assign] world_size is ", world_size, "; it must be >= 1");
  std::vector<int> order(loads.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int i, int j) {
    const LayerLoad &a = loads[index_of(i)], &b = loads[index_of(j)];
    if (a.flops != b.flops) return a.flops > b.flops;
    return a.flops == 0 && a.bytes > b.bytes;
  });
  std::vector<LayerLoad> ranks(index_of(world_size));
  std::vector<int> owners(loads.size(), 0);
  for (const int i : order) {
    const LayerLoad& load = loads[index_of(i)];
    const int owner = least_loaded(ranks, load.flops == 0);
    owners[index_of(i)] = owner;
    ranks[index_of(owner)].flops += load.flops;
    ranks[index_of(owner)].bytes += load.bytes;
  }
  return owners;
}

}  // namespace dkfac::kfac
