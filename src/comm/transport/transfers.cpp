#include "comm/transport/transfers.h"

#include <algorithm>

namespace dkfac::comm {

bool Transfers::complete() const {
  return std::all_of(transfers_.begin(), transfers_.end(),
                     [](const Transfer& l) { return l.complete(); });
}

std::vector<int> Transfers::missing() const {
  const auto peers = [this](auto&& wanted) {
    std::vector<int> ranks;
    for (const Transfer& transfer : transfers_)
      if (!transfer.complete() && wanted(transfer)) ranks.push_back(transfer.peer);
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return ranks;
  };
  const auto silent = peers([](const Transfer& transfer) {
    return transfer.direction == Transfer::Direction::receive && transfer.done == 0;
  });
  return silent.empty() ? peers([](const Transfer&) { return true; }) : silent;
}

}  // namespace dkfac::comm
