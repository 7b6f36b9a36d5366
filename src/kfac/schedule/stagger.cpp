#include "kfac/schedule/stagger.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "dkfac/core/error.h"

namespace dkfac::kfac {

std::vector<int> stagger_offsets(std::span<const StaggerItem> items, int interval) {
  DKFAC_CHECK(interval >= 1, "[stagger offsets] interval is ", interval, "; it must be >= 1");
  std::vector<std::size_t> order(items.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(
      order, [&](std::size_t i, std::size_t j) { return items[i].flops > items[j].flops; });
  std::map<int, std::vector<double>> work;  // By owner: the work at each of its offsets.
  for (const StaggerItem& item : items) {
    std::vector<double>& offsets = work[item.owner];
    if (std::ssize(offsets) < interval) offsets.push_back(0);
  }
  std::vector<int> result(items.size(), 0);
  for (const std::size_t i : order) {
    std::vector<double>& offsets = work[items[i].owner];
    const auto least = std::ranges::min_element(offsets);
    *least += items[i].flops;
    result[i] =
        static_cast<int>((least - offsets.begin()) * std::int64_t{interval} / std::ssize(offsets));
  }
  return result;
}

}  // namespace dkfac::kfac
