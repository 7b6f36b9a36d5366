#include "kfac/schedule/spread.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "dkfac/core/error.h"

namespace dkfac::kfac {

std::vector<int> spread_phases(std::span<const SpreadItem> items, int interval) {
  DKFAC_CHECK(interval >= 1, "[spread phases] interval is ", interval, "; it must be >= 1");
  std::vector<std::size_t> order(items.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(
      order, [&](std::size_t i, std::size_t j) { return items[i].flops > items[j].flops; });
  std::map<int, std::vector<double>> work;  // by owner: of each of its phases
  for (const SpreadItem& item : items) {
    std::vector<double>& phases = work[item.owner];
    if (std::ssize(phases) < interval) phases.push_back(0);
  }
  std::vector<int> result(items.size(), 0);
  for (const std::size_t i : order) {
    std::vector<double>& phases = work[items[i].owner];
    const auto least = std::ranges::min_element(phases);
    *least += items[i].flops;
    result[i] =
        static_cast<int>((least - phases.begin()) * std::int64_t{interval} / std::ssize(phases));
  }
  return result;
}

}  // namespace dkfac::kfac
