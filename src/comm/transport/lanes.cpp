#include "comm/transport/lanes.h"

#include <algorithm>

namespace dkfac::comm {

bool Lanes::complete() const {
  return std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& l) { return l.complete(); });
}

std::vector<int> Lanes::missing() const {
  const auto peers = [this](auto&& wanted) {
    std::vector<int> ranks;
    for (const Lane& lane : lanes_)
      if (!lane.complete() && wanted(lane)) ranks.push_back(lane.peer);
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return ranks;
  };
  const auto silent =
      peers([](const Lane& lane) { return lane.way == Lane::Way::receive && lane.done == 0; });
  return silent.empty() ? peers([](const Lane&) { return true; }) : silent;
}

}  // namespace dkfac::comm
